"""`replay`, `log` and `backtest` on a run that is up, on what a kill left behind, and by two readers at once."""

from __future__ import annotations

import json

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family

pytestmark = pytest.mark.e2e


def test_a_killed_run_can_be_read(stack: Stack) -> None:
    up = stack.up("three", "--set", "recipe_options.mode=wait", until="step   12/12")
    live = stack.json("replay", "three", "--until", "5", "--verify")
    assert live["same"] and (live["tick"], live["mesh_state"]["tick"]) == (5, 5)
    assert live["signatures"]["by_kind"]["observation"] == {"signed": 5}
    assert live["mesh_state"]["effective"] == {"optimizer.lr_scale": 1.0}
    assert live["mesh_state"]["agents"]["learning_rate"]["live"]
    processes = family(up.pid)
    up.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []

    # Nothing was exported. One of the two opens the store; the other finds it in use, or the export when it comes.
    readers = [stack.start("replay", "three", "--json") for _ in range(2)]
    ended = [stack.end_of(reader) for reader in readers]
    assert 0 in [code for code, _ in ended], ended
    for code, output in ended:
        if code == 0:
            assert json.loads(output)["by_kind"]["observation"] == 12
        else:
            assert code == 2 and "the store of run 'three' is being read by another command" in output
    assert stack.run_folder("three").export.exists()

    report = stack.json("backtest", "learning_rate", "three")
    assert (report["agent"], report["ticks"], report["took_part"], report["same_votes"]) == (
        "learning_rate",
        12,
        True,
        True,
    )
    code, output = stack.command("backtest", "learnig_rate", "three")
    assert (code, "no agent named 'learnig_rate'; did you mean 'learning_rate'?" in output) == (2, True)
