"""`up --meshes 3`: three replicas are kept up, and that one is away is told otherwise than that all are."""

from __future__ import annotations

import os
import signal

import pytest
from tests.integration.conftest import Stack, wait_for

pytestmark = pytest.mark.e2e

MESHES = ("mesh", "mesh-2", "mesh-3")


def test_decisions_continue_without_one_of_three_replicas(stack: Stack) -> None:
    up = stack.up("m", "--meshes", "3", "--set", "recipe_options.mode=wait", until="learner  ")
    folder = stack.run_folder("m")

    def kill(*names: str) -> None:
        children = folder.info().children
        for name in names:
            os.kill(children[name], signal.SIGSTOP)
        for name in names:
            os.kill(children[name], signal.SIGKILL)

    assert stack.json("status", "m")["notes"] == []
    os.kill(folder.info().children["mesh-3"], signal.SIGSTOP)
    notes = stack.json("status", "m")["notes"]
    assert notes[0].startswith("mesh-3 is frozen")
    assert notes[1] == "not running: 1 of 3 mesh replicas (mesh-3); the others still make decisions"
    os.kill(folder.info().children["mesh-3"], signal.SIGCONT)

    kill("mesh-2")
    output = stack.read_until(
        up, "mesh-2 ended (killed by SIGKILL): 2 of 3 replicas still make decisions until it is back"
    )
    output += stack.read_until(up, "mesh-2 is back after")
    assert "no decisions are made" not in output
    kill(*MESHES)
    assert "no decisions are made" in stack.read_until(up, "no decisions are made")
    wait_for(lambda: not any("mesh" in note for note in stack.json("status", "m")["notes"]), "all three are back")
    assert stack.command("down", "m")[0] == 0
    assert stack.end_of(up)[0] == 0
    assert stack.command("replay", "m")[0] == 0
