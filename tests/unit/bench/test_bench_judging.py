"""The benches of judging, on a few seeds: what they are for is found, and they can fail."""

from __future__ import annotations

import pytest

from oven_bench.judging import aggregation, planted_bias
from oven_bench.judging.simulated_judges import ADVERSARIES
from oven_learner.rewards.aggregation import DEFAULT_RULE


@pytest.mark.parametrize("fault", planted_bias.FAULTS)
def test_a_planted_fault_is_found_within_two_hundred_groups(fault: str) -> None:
    after, others = planted_bias.run(fault, seed=7001)
    assert after is not None and after <= planted_bias.WITHIN
    assert not others


def test_without_a_fault_there_is_no_alarm() -> None:
    assert planted_bias.run("", seed=7002) == (None, frozenset())


def test_every_rule_meets_every_adversary_and_a_rule_that_breaks_the_promise_is_told() -> None:
    found = aggregation.measure(groups=40, seed=3)
    assert all(of.keys() == ADVERSARIES.keys() for of in found.values())
    assert found["cautious"]["hostile"]["share"] > 0.2 > found["cautious"]["hostile"]["share_learnt"]
    assert found["min"]["two_fooled"]["share"] < found["raw_mean"]["two_fooled"]["share"]
    assert not aggregation.kept({DEFAULT_RULE: found["cautious"]})
