"""The families of faults of a pretraining run: silent before their onset, and harmful where they say so."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tests.support.hooks import apply_batch

from oven_bench.gym.fault import Fault, fault
from oven_bench.gym.faults.catalogue import families
from oven_bench.gym.faults.pretraining.compound import OutlierGradient
from oven_bench.gym.faults.pretraining.tokens import CorruptedBatches, ShuffledTargets
from oven_bench.gym.seeded_draws import At, count, log10_uniform, log_uniform, uniform, whole
from oven_bench.gym.tasks.pretraining.trainee import BATCH, Pretraining

FAMILIES = [one for one in families().values() if one.kind == "pretraining" and one.written == "development"]
FAULTS = [family for family in FAMILIES if not family.healthy]
BEGUN, BEFORE, AFTER = 40, 2, 24
ONSET = BEGUN + BEFORE


class Twin:
    """Seed 101, a while after the warm-up, and what becomes of it without a fault."""

    def __init__(self) -> None:
        trainee = Pretraining(101)
        for _ in range(BEGUN):
            trainee.train_step()
        self.state = trainee.state()
        self.steps = [trainee.train_step() for _ in range(BEFORE + AFTER)]
        self.quality = trainee.quality()

    def again(self) -> Pretraining:
        trainee = Pretraining(101)
        trainee.restore(self.state)
        trainee.gradient_steps = BEGUN
        return trainee


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin()


def severe(family: type[Fault]) -> At:
    """The severe end; of two variants the one that begins at the onset, or of which nothing protects."""
    for seed in range(20):
        case = family.draw(At(1, seed), ONSET)
        if case.onset and not getattr(case, "clipped", False):
            return At(1, seed)
    raise AssertionError(f"{family.name} has no variant that begins at the onset")


@pytest.mark.parametrize("family", FAULTS, ids=lambda family: family.name)
def test_a_fault_does_nothing_before_its_onset_and_harm_after(family: type[Fault], twin: Twin) -> None:
    trainee, case = twin.again(), family.draw(severe(family), ONSET)
    assert [trainee.train_step(case) for _ in range(BEFORE)] == twin.steps[:BEFORE]
    for _ in range(AFTER):
        trainee.train_step(case)
    assert trainee.quality() - twin.quality > 0.02  # between two seeds' runs: 0.02


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.healthy], ids=lambda family: family.name)
def test_what_only_looks_like_a_fault_begins_at_its_onset_too(family: type[Fault], twin: Twin) -> None:
    trainee, case = twin.again(), family.draw(At(1), ONSET)
    assert [trainee.train_step(case) for _ in range(BEFORE)] == twin.steps[:BEFORE]
    for _ in range(3):
        trainee.train_step(case)
    assert trainee.quality() - twin.quality < 0.5


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_case_is_what_its_generator_says(family: type[Fault]) -> None:
    cases = [[family.draw(Random(seed), ONSET) for seed in range(6)] for _ in range(2)]
    assert cases[0] == cases[1]
    if family.name != "pretraining.healthy":
        assert len({repr(case) for case in cases[0]}) > 1
    assert all(case.onset in (0, ONSET) for case in cases[0])


def test_a_clipped_outlier_is_a_mild_one(twin: Twin) -> None:
    """What the user's clipping already protects from: a case that needs nothing."""
    losses = {}
    for seed in range(20):
        case = OutlierGradient.draw(At(1, seed), ONSET)
        if case.clipped not in losses:
            trainee = twin.again()
            for _ in range(BEFORE + AFTER):
                trainee.train_step(case)
            losses[case.clipped] = trainee.quality() - twin.quality
    assert losses[True] < losses[False]


def test_a_bad_stretch_lies_in_the_data(twin: Twin) -> None:
    batch = torch.randint(32, 127, (BATCH, 65), generator=torch.Generator().manual_seed(0))
    corrupted, shuffled = (
        family(onset=50, length=10, share=share, seed=1)
        for family, share in ((CorruptedBatches, 0.3), (ShuffledTargets, 1.0))
    )
    for case in (corrupted, shuffled):
        assert all(apply_batch(case, batch, cursor) is batch for cursor in (49, 60))
        assert torch.equal(apply_batch(case, batch, 55), apply_batch(case, batch, 55))
    share = (apply_batch(corrupted, batch, 55) != batch).float().mean()
    assert 0.2 < share < 0.4
    inputs, targets = apply_batch(shuffled, batch, 55)
    assert torch.equal(inputs, batch[:, :-1]) and not torch.equal(targets, batch[:, 1:])
    assert torch.equal(targets.sort(1).values, batch[:, 1:].sort(1).values)
    # A run that goes back meets it again; one that skips it does not.
    trainee, case = twin.again(), CorruptedBatches(onset=BEGUN, length=10, share=1.0, seed=1)
    trainee.train_step(case)
    trainee.restore(twin.state)
    assert trainee.train_step(case)["loss"] > twin.steps[0]["loss"] + 1
    trainee.actuators.apply("data.skip", 10)
    assert trainee.train_step(case)["loss"] < twin.steps[0]["loss"] + 1


def test_severity_goes_from_the_mild_end_to_the_severe_one() -> None:
    @fault("pretraining.some", written="development")
    class Some(Fault):
        """Of all kinds of severity."""

        steps: int = whole(60, 5)
        factor: float = log_uniform(1e-2, 1e-8)
        weight: float = uniform(2, 4)
        scale: float = log10_uniform(-1.0, 1.0, times=3)
        length: int = count(20, 1.0)

    assert [Some.draw(At(q), 0).steps for q in (0, 1)] == [60, 5]
    middle = Some.draw(At(0.5), 7)
    assert (middle.onset, middle.weight, middle.scale, middle.length) == (7, 3, 3, round(20 * 10**0.5))
    assert middle.factor == pytest.approx(1e-5)
    assert [At(1, seed).getrandbits(32) for seed in (1, 2)] == [Random(seed).getrandbits(32) for seed in (1, 2)]
