"""`bench latency` and `bench throughput` in small: a real server, mesh and agents; no figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_bench.performance import latency, step, throughput
from oven_bench.performance.step_arm import Order

pytestmark = pytest.mark.usefixtures("forked_children")


async def test_every_decision_of_latency_is_measured_beside_the_relay(tmp_path: Path) -> None:
    result = await latency.measure(tmp_path, agents=2, blocks=2, trips=3)
    assert set(result) == {
        "decision_p50_ms", "decision_p99_ms", "relay_p50_ms", "relay_p99_ms", "ratio_p50", "ratio_low", "ratio_high",
        "agents", "decisions",
    }  # fmt: skip
    assert result["decisions"] == 6 and result["ratio_low"] <= result["ratio_p50"] <= result["ratio_high"]


async def test_throughput_climbs_with_few_agents_and_with_many_in_one_process(tmp_path: Path) -> None:
    result = await throughput.measure(tmp_path, [20], 2.0, many=6, processes=2, lag_rungs=2)
    assert set(result) == {
        "steps_per_s_4", "steps_per_s_6", "cpu_ms_per_step_6", "lag_p99_steps_at_100hz", "lag_p50_steps_at_100hz",
        "publisher_per_s", "processes_of_many",
    }  # fmt: skip
    assert result["publisher_per_s"]


async def test_a_step_is_measured_beside_plain_trl_on_the_same_work(tmp_path: Path) -> None:
    order = Order(cache=str(tmp_path), size="tiny", dtype="bf16", prompts=2, group=2, completion=4)
    result = await step.measure(order, rounds=4, block=2)
    assert result.keys() >= {"ours_s", "trl_s", "ratio", "ratio_low", "ratio_high", "floor_low", "floor_high"}
    assert result["same_tokens"] is True and result["steps"] == 8
    assert (result["device"], result["dtype"], result["model"]) == ("cpu", "bf16", "tiny")
