"""The arithmetic of the benches that watch the training thread, and their clock."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_bench.bench_command import Bench
from oven_bench.performance import outage, overhead, step
from oven_bench.performance.on_cpu_clock import OnCpu
from oven_bench.performance.overhead import slowdown
from oven_bench.performance.step_arm import Block
from oven_bench.statistics import seen_quantile
from oven_core.errors import ConfigError


def test_a_slowdown_that_every_block_shows_has_a_narrow_interval() -> None:
    off = [[0.005 + block / 1e5] * 10 for block in range(20)]
    on = [[step * 1.02 for step in block] for block in off]
    found = slowdown(on, off, draws=500)
    assert (found.mean, found.low, found.high) == pytest.approx((1.02, 1.02, 1.02))


def test_one_block_among_many_widens_it() -> None:
    off = [[0.005] * 10 for _ in range(20)]
    on = [[0.005] * 10 for _ in range(19)] + [[0.05] * 10]
    found = slowdown(on, off, draws=2000)
    assert found.mean == pytest.approx(1.45)
    assert found.low == pytest.approx(1.0)
    assert found.high > 1.8


@given(st.lists(st.lists(st.floats(1e-3, 1e-1), min_size=3, max_size=3), min_size=4, max_size=8))
def test_the_interval_holds_the_ratio_of_equal_arms(blocks: list[list[float]]) -> None:
    found = slowdown(blocks, blocks, draws=50)
    assert found.mean == found.low == found.high == 1.0


def test_a_step_is_set_beside_the_plain_one_of_its_round() -> None:
    plain = [Block(2.0 + number, 2.0, 100) for number in range(6)]
    ours = [Block(1.1 * block.wall_s, 2.0, 100) for block in plain]
    found = step.figures({"trl": plain, "ours": ours, "floor": plain}, 10)
    assert found["ratio"] == found["ratio_low"] == found["ratio_high"] == 1.1
    assert found["floor_low"] == found["floor_high"] == found["ratio_on_cpu"] == 1.0
    assert (found["trl_s"], found["ours_s"]) == (0.45, 0.495)
    assert found["tokens_ratio"] == pytest.approx(1 / 1.1, abs=1e-4)
    assert found["same_tokens"] is True and found["steps"] == 60
    longer = [*plain[:-1], Block(7.0, 2.0, 101)]
    assert step.figures({"trl": plain, "ours": longer, "floor": plain}, 10)["same_tokens"] is False


def test_quantiles_are_values_that_were_seen() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [seen_quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 3.0, 5.0, 5.0]


def test_the_clock_leaves_out_the_run_queue_where_the_kernel_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_bench.performance.on_cpu_clock.SCHEDSTAT", "/nowhere/schedstat")
    with OnCpu() as wall:
        assert not wall.known
        assert wall.us(partial(time.sleep, 0.002)) >= 2000


@pytest.mark.parametrize(
    ("bench", "wrong", "said"),
    [
        (overhead.BENCH, ["--pairs", "10", "--block", "5"], "four pairs of blocks"),
        (step.BENCH, ["--rounds", "3"], "four rounds"),
        (step.BENCH, ["--group", "1"], "no advantage"),
        (outage.BENCH, ["--rate", "0"], "--rate 0"),
    ],
)
def test_wrong_arguments_are_named(bench: Bench, wrong: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench.run(wrong)


@pytest.mark.parametrize(("wrong", "code"), [({}, 0), ({"doubled": 1}, 1), ({"lost_acknowledged": 2}, 1)])
def test_a_log_that_lost_or_doubled_something_is_a_no(
    wrong: dict[str, int], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"lost_acknowledged": 0, "doubled": 0, "out_of_order": 0, "unaccounted": 0} | wrong

    async def measured(*_: object) -> dict[str, int]:
        return found

    monkeypatch.setattr(outage, "_measure", measured)
    assert outage.BENCH.run(["--json"]) == code
    said = capsys.readouterr()
    assert json.loads(said.out) == found
    assert all(name in said.err for name in wrong)
