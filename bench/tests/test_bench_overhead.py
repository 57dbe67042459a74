"""The arithmetic of the benches that watch the training thread, and their clock."""

from __future__ import annotations

import time
from functools import partial

import pytest

from oven_bench.performance import overhead, step
from oven_bench.performance.on_cpu_clock import OnCpu
from oven_bench.performance.step_arm import Block
from oven_bench.study import Study
from oven_core.errors import ConfigError


def test_a_step_is_set_beside_the_plain_one_of_its_round() -> None:
    plain = [Block(2.0 + number, 2.0, 100) for number in range(6)]
    ours = [Block(1.1 * block.wall_s, 2.0, 100) for block in plain]
    result = step.figures({"trl": plain, "ours": ours, "floor": plain}, 10)
    assert result["ratio"] == result["ratio_low"] == result["ratio_high"] == 1.1
    assert result["floor_low"] == result["floor_high"] == result["ratio_on_cpu"] == 1.0
    assert (result["trl_s"], result["ours_s"]) == (0.45, 0.495)
    assert result["tokens_ratio"] == pytest.approx(1 / 1.1, abs=1e-4)
    assert result["same_tokens"] is True and result["steps"] == 60
    longer = [*plain[:-1], Block(7.0, 2.0, 101)]
    assert step.figures({"trl": plain, "ours": longer, "floor": plain}, 10)["same_tokens"] is False


def test_the_clock_leaves_out_the_run_queue_where_the_kernel_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_bench.performance.on_cpu_clock.SCHEDSTAT", "/nowhere/schedstat")
    with OnCpu() as wall:
        assert not wall.reads_run_queue
        assert wall.us(partial(time.sleep, 0.002)) >= 2000


@pytest.mark.parametrize(
    ("bench", "wrong", "text"),
    [
        (overhead.STUDY, ["--pairs", "10", "--block", "5"], "four pairs of blocks"),
        (step.STUDY, ["--rounds", "3"], "at least four"),
        (step.STUDY, ["--group", "1"], "no advantage"),
    ],
)
def test_wrong_arguments_are_named(bench: Study, wrong: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bench.run(wrong)
