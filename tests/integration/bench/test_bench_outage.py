"""The benches of the learner's link, small: that they run, and say what they promise to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import ROOT, WAIT_S, Stack
from tests.support.forked import ForkServer

from oven_bench.performance import outage


@pytest.mark.parametrize("how", [[], ["--freeze"]])
def test_an_outage_loses_doubles_and_disorders_nothing(how: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert outage.BENCH.run(["--seconds", "1", "--rate", "400", "--json", *how]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sent"] > 1000
    assert found["sent"] == found["in_log"] == found["acknowledged"]
    assert [found[name] for name in ("lost_acknowledged", "doubled", "out_of_order", "dropped", "unaccounted")] == [
        0
    ] * 5
    assert {"training_p999_us", "noop_p999_us", "back_s", "on_cpu"} <= set(found)


def test_overhead_runs_with_the_whole_stack(stack: Stack, stack_forks: ForkServer) -> None:
    bench = "import sys; from oven_bench.performance.overhead import BENCH; sys.exit(BENCH.run(sys.argv[1:]))"
    process: subprocess.Popen[str] = stack_forks.popen(code=True)(
        [sys.executable, "-c", bench, "--pairs", "16", "--block", "2", "--json"],
        env=stack.env | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        said, wrong = process.communicate(timeout=3 * WAIT_S)
    assert process.returncode == 0, wrong
    found = json.loads(said)
    assert found["pairs"] == 16 and found["ticks_dealt_with"] > 100
    assert found["agents"] == 2, "those that are installed, as `up` starts them"
    assert found["step_slowdown_low"] <= found["step_slowdown"] <= found["step_slowdown_high"]
    assert {"observe_p50_us", "observe_p99_us", "poll_p99_us", "noop_p99_us", "step_bare_ms"} <= set(found)
    assert not Path(stack.home.path).exists(), "it leaves nothing in the user's home"
