"""What the benches of the bus make of their measurements; and the series that agents read most."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from oven_bench.performance.latency import summary
from oven_bench.performance.throughput import Lag, keeps_up


def lags(ticks: Callable[[float], float], seconds: float = 4.0) -> list[Lag]:
    return [Lag("one", 100 + second / 20, round(ticks(second / 20))) for second in range(int(20 * seconds))]


@pytest.mark.parametrize(
    ("ticks", "followed"),
    [
        (lambda second: 5, True),
        (lambda second: 400 if 3.2 < second < 3.4 else 5, True),  # a hiccup
        (lambda second: 300 - 60 * second, True),  # it catches up
        (lambda second: 100 * second, False),
        (lambda second: 600, False),  # more than half a second behind for good
    ],
)
def test_a_rung_is_followed_unless_the_lag_grows(ticks: Callable[[float], float], followed: bool) -> None:
    assert keeps_up(lags(ticks), 100, 4.0, 1000) is followed


def test_who_says_nothing_any_more_follows_nothing() -> None:
    assert not keeps_up([lag for lag in lags(lambda second: 0) if lag.time < 102.5], 100, 4.0, 1000)


def test_the_ratio_of_the_medians_and_its_interval() -> None:
    rng = random.Random(3)
    bare = [[rng.uniform(0.9, 1.1) / 1000 for _ in range(50)] for _ in range(10)]
    real = [[2 * took for took in block] for block in bare]
    result = summary(real, bare)
    assert result["ratio_p50"] == 2.0
    assert result["ratio_low"] == result["ratio_high"] == 2.0, "the blocks of a pair had the same machine"
    assert 1.9 < result["decision_p50_ms"] < 2.1 and result["relay_p99_ms"] <= 1.1
