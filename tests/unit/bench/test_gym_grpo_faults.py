"""The families of the GRPO trainee: nothing before the onset, harm at the severe end, and what is healthy is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from oven_bench.gym.fault import Fault
from oven_bench.gym.faults.catalogue import families
from oven_bench.gym.faults.grpo.settings import RateTooHigh
from oven_bench.gym.faults.grpo.weights import NearCeiling
from oven_bench.gym.seeded_draws import At
from oven_bench.gym.tasks.grpo.trainee import USER, Grpo

FAMILIES = [one for one in families().values() if one.kind == "grpo" and one.written == "development"]
FAULTS, HEALTHY = ([one for one in FAMILIES if one.healthy is healthy] for healthy in (False, True))
ONSET = 60
AFTER = 60
SOON = 30
NOISE = 0.02


@pytest.fixture(scope="module")
def twin() -> dict[int, tuple[dict[str, Any], float]]:
    """Development seed 101 without a fault: state and quality after so many steps."""
    trainee, kept = Grpo(101), {}
    for step in range(ONSET + AFTER + 1):
        if step in (0, SOON, ONSET, ONSET + SOON, AFTER, ONSET + AFTER):
            kept[step] = (trainee.state(), trainee.quality())
        trainee.train_step()
    return kept


def at(twin: dict[int, tuple[dict[str, Any], float]], step: int) -> Grpo:
    trainee = Grpo(101)
    trainee.restore(twin[step][0])
    trainee.gradient_steps = step
    return trainee


@pytest.mark.parametrize("family", FAULTS, ids=lambda family: family.name)
def test_a_severe_case_does_harm(family: type[Fault], twin: dict[int, tuple[dict[str, Any], float]]) -> None:
    assert not family.healthy and family.kind == "grpo"
    case = family.draw(At(1, seed=101), ONSET)
    trainee = at(twin, case.onset)
    for _ in range(AFTER):
        trainee.train_step(case)
    assert trainee.quality() > twin[case.onset + AFTER][1] + NOISE


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_case_does_nothing_before_its_onset_and_something_after(
    family: type[Fault], twin: dict[int, tuple[dict[str, Any], float]]
) -> None:
    case = family.draw(At(1, seed=101), ONSET)
    if case.onset:
        before, bare = at(twin, ONSET), at(twin, ONSET)
        before.gradient_steps = before.cursor = bare.gradient_steps = bare.cursor = ONSET - 2
        assert [before.train_step(case) for _ in range(2)] == [bare.train_step() for _ in range(2)]
    after, bare = at(twin, case.onset), at(twin, case.onset)
    differ = [after.train_step(case) for _ in range(3)] != [bare.train_step() for _ in range(3)]
    assert differ is (family.name != "grpo.healthy")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_cases_differ_between_draws_and_are_the_same_for_the_same(family: type[Fault]) -> None:
    drawn = [family.draw(Random(seed), ONSET) for seed in range(8)]
    assert drawn == [family.draw(Random(seed), ONSET) for seed in range(8)]
    if family.name != "grpo.healthy":
        assert any(one != drawn[0] for one in drawn)


@pytest.mark.parametrize("family", HEALTHY, ids=lambda family: family.name)
def test_what_is_healthy_does_no_harm(family: type[Fault], twin: dict[int, tuple[dict[str, Any], float]]) -> None:
    assert family.healthy and family.kind == "grpo"
    case = family.draw(At(1, seed=101), ONSET)
    trainee = at(twin, case.onset)
    for _ in range(SOON):
        trainee.train_step(case)
    # No worse than it was, but for what the run without it does by itself: that depends on how a machine rounds sums.
    assert trainee.quality() < max(twin[case.onset][1], twin[case.onset + SOON][1]) + NOISE


def test_a_lasting_fault_keeps_the_users_own_settings(twin: dict[int, tuple[dict[str, Any], float]]) -> None:
    trainee = at(twin, ONSET)
    trainee.train_step(RateTooHigh.draw(At(1), ONSET))
    assert trainee.settings["learning_rate"] == pytest.approx(30 * USER["learning_rate"])
    trainee.train_step()
    assert trainee.settings == USER


def test_a_run_at_the_ceiling_is_there_again_after_a_return_to_the_beginning() -> None:
    case = NearCeiling.draw(At(1), ONSET)
    trainee = Grpo(101)
    beginning = trainee.state()
    trainee.train_step(case)
    solved = trainee.quality()
    assert solved < 0.1
    trainee.restore(beginning)
    trainee.train_step(case)
    assert trainee.quality() == solved
