"""The families of faults of a pretraining run: silent before their onset, and harmful where they say so."""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from pathlib import Path
from random import Random

import pytest
import torch
from oven_learner.gym.faults.pretraining.corrupted_batches import Corrupted
from oven_learner.gym.faults.pretraining.outlier_gradient import OutlierGradient
from oven_learner.gym.faults.pretraining.shuffled_targets import Shuffled
from tests.unit.test_gym_first_set import NAMES as FIRST_SET
from tests.unit.whole_trainees import WRITTEN_BLIND

import oven_learner.gym.faults.pretraining as package
from oven_learner.gym.fault import Family
from oven_learner.gym.faults.severity import At, log_uniform, uniform, whole
from oven_learner.gym.pretraining import Pretraining
from oven_learner.gym.pretraining.trainee import BATCH

MODULES = [
    importlib.import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)
]
FOUND = {
    f"{module.__name__}:{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Family) and value.__module__ == module.__name__
}
EVERY = sorted((family() for family in FOUND.values()), key=lambda family: family.name)
MILDER = WRITTEN_BLIND.union(FIRST_SET)  # tried in files of their own
FAMILIES = [family for family in EVERY if family.name.partition(".")[2] not in MILDER]
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


def severe(family: Family) -> At:
    """The severe end; of two variants the one that begins at the onset, or of which nothing protects."""
    for seed in range(20):
        case = family.draw(At(1, seed), ONSET)
        if case.onset and not getattr(case, "clipped", False):
            return At(1, seed)
    raise AssertionError(f"{family.name} has no variant that begins at the onset")


def test_every_family_is_an_entry_point_of_its_own_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["oven.faults"]
    assert {name: place for name, place in points.items() if name.startswith("pretraining.")} == {
        family.name: place for place, family in FOUND.items()
    }
    assert all(family.kind == "pretraining" for family in EVERY)


@pytest.mark.parametrize("family", FAULTS, ids=lambda family: family.name)
def test_a_fault_does_nothing_before_its_onset_and_harm_after(family: Family, twin: Twin) -> None:
    trainee, case = twin.again(), family.draw(severe(family), ONSET)
    assert [trainee.train_step(case) for _ in range(BEFORE)] == twin.steps[:BEFORE]
    for _ in range(AFTER):
        trainee.train_step(case)
    assert trainee.quality() - twin.quality > 0.02  # between two seeds' runs: 0.02


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.healthy], ids=lambda family: family.name)
def test_what_only_looks_like_a_fault_begins_at_its_onset_too(family: Family, twin: Twin) -> None:
    trainee, case = twin.again(), family.draw(At(1), ONSET)
    assert [trainee.train_step(case) for _ in range(BEFORE)] == twin.steps[:BEFORE]
    for _ in range(3):
        trainee.train_step(case)
    assert trainee.quality() - twin.quality < 0.5


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_case_is_what_its_generator_says(family: Family) -> None:
    cases = [[family.draw(Random(seed), ONSET) for seed in range(6)] for _ in range(2)]
    assert cases[0] == cases[1]
    if family.name != "pretraining.healthy":
        assert len({repr(case) for case in cases[0]}) > 1
    assert all(case.onset in (0, ONSET) for case in cases[0])


def test_a_clipped_outlier_is_a_mild_one(twin: Twin) -> None:
    """What the user's clipping already protects from: a case that needs nothing."""
    losses = {}
    for seed in range(20):
        case = OutlierGradient().draw(At(1, seed), ONSET)
        if case.clipped not in losses:
            trainee = twin.again()
            for _ in range(BEFORE + AFTER):
                trainee.train_step(case)
            losses[case.clipped] = trainee.quality() - twin.quality
    assert losses[True] < losses[False]


def test_a_bad_stretch_lies_in_the_data(twin: Twin) -> None:
    batch = torch.randint(32, 127, (BATCH, 65), generator=torch.Generator().manual_seed(0))
    corrupted, shuffled = Corrupted(50, 10, 0.3, seed=1), Shuffled(50, 10, 1.0, seed=1)
    for case in (corrupted, shuffled):
        assert all(case.batch(batch, cursor) is batch for cursor in (49, 60))
        assert torch.equal(case.batch(batch, 55), case.batch(batch, 55))
    share = (corrupted.batch(batch, 55) != batch).float().mean()
    assert 0.2 < share < 0.4
    inputs, targets = shuffled.batch(batch, 55)
    assert torch.equal(inputs, batch[:, :-1]) and not torch.equal(targets, batch[:, 1:])
    assert torch.equal(targets.sort(1).values, batch[:, 1:].sort(1).values)
    # A run that goes back meets it again; one that skips it does not.
    trainee, case = twin.again(), Corrupted(BEGUN, 10, 1.0, seed=1)
    trainee.train_step(case)
    trainee.restore(twin.state)
    assert trainee.train_step(case)["loss"] > twin.steps[0]["loss"] + 1
    trainee.actuators.apply("data.skip", 10)
    assert trainee.train_step(case)["loss"] < twin.steps[0]["loss"] + 1


def test_severity_goes_from_the_mild_end_to_the_severe_one() -> None:
    assert [whole(At(q), 60, 5) for q in (0, 1)] == [60, 5]
    assert log_uniform(At(0.5), 1e-2, 1e-8) == pytest.approx(1e-5)
    assert uniform(At(0.25), 2, 4) == 2.5
    assert [At(1, seed).getrandbits(32) for seed in (1, 2)] == [Random(seed).getrandbits(32) for seed in (1, 2)]
