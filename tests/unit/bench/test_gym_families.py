"""Families that are or were held out, on the gym's own trainees: they draw, act from their onset on and not before, and
act the same again from the same state."""

from __future__ import annotations

import math
from random import Random

import pytest
from tests.support.whole_trainees import (
    END_OF_RUN,
    ONSET,
    Metrics,
    numbers,
    same,
    stepped,
    trainee,
    written_blind,
)
from torch import Tensor

from oven_bench.gym.fault import Fault

BLIND = written_blind()
every = pytest.mark.parametrize("family", BLIND.values(), ids=lambda family: family.name)
Sound = dict[str, dict[int, tuple[Metrics, list[Tensor]]]]


@pytest.fixture(scope="module")
def sound() -> Sound:
    """What runs without a fault report and hold, by kind, at the onset and at the end."""
    found: Sound = {}
    for kind in ("pretraining", "grpo"):
        run, reported = trainee(kind), Metrics()
        found[kind] = {}
        for to in (ONSET, END_OF_RUN):
            reported = reported + stepped(run, to, None)
            found[kind][to] = (reported, numbers(run))
    return found


def test_enough_of_each_kind_are_held_out_and_healthy_ones_among_them() -> None:
    held_out = [family for family in BLIND.values() if family.held_out]
    faults = [family.kind for family in held_out if not family.healthy]
    assert faults.count("pretraining") >= 6 and faults.count("grpo") >= 5
    assert len(held_out) - len(faults) == 3


@every
def test_its_name_says_its_kind(family: type[Fault]) -> None:
    assert BLIND[family.name].kind == family.name.partition(".")[0]


@every
def test_a_case_is_a_function_of_the_generator_and_the_onset(family: type[Fault]) -> None:
    cases = [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert cases == [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert {case.onset for case in cases} == {ONSET}
    assert len({repr(case) for case in cases}) > 2


@every
def test_it_acts_from_its_onset_on_and_not_before(family: type[Fault], sound: Sound) -> None:
    expected, _ = sound[family.kind][END_OF_RUN]
    differs = False
    for seed in range(8):  # a mild case may do nothing in so few steps
        run, case = trainee(family.kind), family.draw(Random(seed), ONSET)
        reported = stepped(run, ONSET, case)
        assert (reported, True) == (sound[family.kind][ONSET][0], same(numbers(run), sound[family.kind][ONSET][1]))
        reported += stepped(run, END_OF_RUN, case)
        assert all(math.isfinite(number) for metrics in reported for number in metrics.values())
        if differs := reported != expected:
            break
    assert differs


@every
def test_runs_may_share_a_case_be_copied_and_go_back(family: type[Fault]) -> None:
    case = family.draw(Random(2), ONSET)
    one = trainee(family.kind)
    stepped(one, ONSET + 1, case)
    early = one.state()
    stepped(one, ONSET + 3, case)
    one.restore(early)  # the data go back, the steps that were computed do not
    other = trainee(family.kind)
    stepped(other, ONSET + 2, case)
    other.restore(early)
    other.gradient_steps = one.gradient_steps
    assert stepped(one, END_OF_RUN, case) == stepped(other, END_OF_RUN, family.draw(Random(2), ONSET))
    assert same(numbers(one), numbers(other))
