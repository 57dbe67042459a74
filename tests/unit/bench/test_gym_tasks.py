"""The tasks that `gym --tasks` asks for: each trains, is steered and rolled back, and shows a fault when it sets in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from tests.support.gym_line import Script
from tests.support.installed import entry_points, installed

from oven_bench.gym import arm_registry
from oven_bench.gym.arm import Arm
from oven_bench.gym.episode import run
from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.faults import catalogue
from oven_bench.gym.seeded_draws import At
from oven_bench.gym.shared_prefix import Record, untouched
from oven_bench.gym.task_table import TASKS, USUAL, Kind, Task, task
from oven_bench.gym.trainee_factory import make
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.actuator_names import ACTUATORS

__all__ = ["entry_points", "installed"]
SEED = 101
KINDS = tuple(kind for kind in TASKS if kind not in USUAL)
OWN = [family for family in catalogue.families().values() if family.kind in KINDS]
ONSET, END = 4, 12
"""Of a fault in a short run."""
KNOBS: dict[Kind, dict[str, float]] = {
    "wide": {"optimizer.lr_scale": 0.5, "grad.clip": 0.3, "optimizer.weight_decay": 0.2},
    "images": {"optimizer.lr_scale": 0.5, "optimizer.weight_decay": 0.01},
    "dpo": {"optimizer.lr_scale": 0.5, "grad.clip": 0.3, "dpo.beta": 0.6},
    "long_grpo": {"optimizer.lr_scale": 0.5, "grad.clip": 0.3},
}
Steps = list[dict[str, float]]
every_task = pytest.mark.parametrize("kind", KINDS)
every_family = pytest.mark.parametrize("family", OWN, ids=lambda family: family.name)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def exact(metrics: dict[str, float]) -> dict[str, str]:
    """NaN is equal to itself here."""
    return {name: value.hex() for name, value in metrics.items()}


def weights(trainee: Trainee) -> list[torch.Tensor]:
    return [value.clone() for value in trainee.model.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def sound() -> dict[Kind, tuple[Steps, Any, float]]:
    """By kind, of a run without a fault: its metrics, its state at ONSET, and its quality before it began."""
    found = {}
    for kind in KINDS:
        trainee, state = make(kind, SEED), None
        first, metrics = trainee.quality(), Steps()
        for step in range(3 * END):
            if step == ONSET:
                state = trainee.state()
            metrics.append(trainee.train_step())
        found[kind] = (metrics, state, first)
        assert trainee.quality() < first, kind
    return found


@every_task
def test_a_task_trains_and_the_same_seed_gives_the_same_bits(kind: Kind, sound: Any) -> None:
    """That a healthy run ends better than it began, `sound` has seen."""
    again, other = make(kind, SEED), make(kind, SEED + 1)
    assert [exact(again.train_step()) for _ in range(END)] == [exact(one) for one in sound[kind][0][:END]]
    assert exact(other.train_step()) != exact(sound[kind][0][0])


@every_task
def test_every_metric_is_announced_and_held_out_ones_come_from_an_evaluation(kind: Kind, sound: Any) -> None:
    trainee, metrics = make(kind, SEED), sound[kind][0]
    announced = {spec.name: spec for spec in trainee.metrics}
    held_out = {name for name, spec in announced.items() if spec.held_out}
    evaluated = [step for step, found in enumerate(metrics, 1) if held_out & found.keys()]
    assert evaluated == [25 if kind == "long_grpo" else 20]
    shown = {name for found in metrics for name in found if not name.startswith("eval/")}
    assert shown == {name for name in announced if not name.startswith("eval/")}
    assert held_out <= metrics[evaluated[0] - 1].keys()
    assert task(kind).shown in announced


@every_task
def test_what_a_rollback_puts_back_trains_on_as_if_nothing_had_been(kind: Kind, sound: Any) -> None:
    metrics, state, _ = sound[kind]
    trainee = make(kind, SEED)
    trainee.actuators.apply("optimizer.lr_scale", 3.0)
    for _ in range(3):
        trainee.train_step()
    trainee.actuators.apply("optimizer.lr_scale", 1.0)
    trainee.restore(state)
    trainee.gradient_steps = ONSET
    assert [exact(trainee.train_step()) for _ in range(END)] == [exact(one) for one in metrics[ONSET : ONSET + END]]


@every_task
def test_knobs_are_those_of_such_a_run_and_are_read_back(kind: Kind) -> None:
    trainee = make(kind, SEED)
    specs = {spec.name: spec for spec in trainee.actuators.specs()}
    simplexes = {"reward.weights"} if kind == "long_grpo" else set()
    assert specs.keys() == {*KNOBS[kind], "run.evaluate", *simplexes}
    for spec in specs.values():
        known = ACTUATORS[spec.name]
        assert (spec.kind, spec.effect, spec.moves_own_metric) == (known.kind, known.effect, known.moves_own_metric)
    for name, value in KNOBS[kind].items():
        before = trainee.actuators.read(name)
        assert trainee.actuators.apply(name, value).status == "applied"
        assert trainee.actuators.read(name) == value != before
        assert trainee.actuators.apply(name, 1e6).status == "rejected"


@every_task
def test_an_evaluation_that_was_asked_for_comes_with_the_next_step_and_changes_nothing(kind: Kind, sound: Any) -> None:
    trainee = make(kind, SEED)
    assert trainee.actuators.apply("run.evaluate", None).status == "applied"
    seen = [trainee.train_step() for _ in range(3)]
    assert [any(name.startswith("eval/") for name in found) for found in seen] == [True, False, False]
    plain = [{name: value for name, value in found.items() if not name.startswith("eval/")} for found in seen]
    assert [exact(found) for found in plain] == [exact(found) for found in sound[kind][0][:3]]


@every_task
def test_each_knob_moves_the_next_step(kind: Kind) -> None:
    plain = make(kind, SEED)
    plain.train_step()
    start = plain.state()
    plain.train_step()
    alone = weights(plain)
    for name, value in KNOBS[kind].items():
        trainee = make(kind, SEED)
        trainee.restore(start)
        trainee.actuators.apply(name, 0.1 * trainee.settings["clip"] if name == "grad.clip" else value)
        trainee.train_step()
        assert not same(weights(trainee), alone), name


@every_family
def test_a_fault_shows_after_its_onset_and_not_before(family: type[Fault], sound: Any) -> None:
    """And from a copy of the state at its onset it acts the same again."""
    twin, state, _ = sound[family.kind]
    twin = [exact(one) for one in twin[:END]]
    case = family.draw(At(1.0, 7), ONSET)
    trainee = make(family.kind, SEED)
    seen = [exact(trainee.train_step(case)) for _ in range(END)]
    assert seen[: case.onset] == twin[: case.onset]
    assert (seen == twin) == family.name.endswith(".healthy")
    again = make(family.kind, SEED)
    if case.onset:
        again.restore(state)
        again.gradient_steps = ONSET
    assert [exact(again.train_step(case)) for _ in range(END - case.onset)] == seen[case.onset :]


@every_family
def test_a_family_is_open_and_says_what_it_does(family: type[Fault]) -> None:
    assert (family.written, family.held_out) == ("trials set", False)
    assert family.__module__ == task(family.kind).faults
    cases = [family.draw(Random(seed), 110) for seed in range(8)]
    assert cases == [family.draw(Random(seed), 110) for seed in range(8)]


def test_each_task_has_healthy_runs_of_two_shapes_and_five_faults() -> None:
    for kind in KINDS:
        healthy = [family for family in OWN if family.kind == kind and family.healthy]
        faults = [family for family in OWN if family.kind == kind and not family.healthy]
        assert len(healthy) >= 2 and 5 <= len(faults) <= 8, kind


@every_task
def test_a_broken_run_has_the_worst_quality_that_the_task_knows(kind: Kind) -> None:
    trainee = make(kind, SEED)
    with torch.no_grad():
        next(trainee.model.parameters()).fill_(math.nan)
    worst = {"wide": math.log(256), "images": math.log(8)}.get(kind, 1.0)
    assert trainee.quality() == worst
    assert not math.isfinite(trainee.train_step()["grad_norm"])


class Slow(Fault):
    """From halfway on. It sets in at the start: the episode is a hundred steps, and needs no healthy beginning."""

    def settings(self, step: Any) -> None:
        if step.number >= 50:
            step.settings["learning_rate"] *= 4


@pytest.fixture(scope="module")
def records() -> dict[Kind, Record]:
    made = {}
    for kind in KINDS:
        beginning = Record(states={0: (0, make(kind, SEED).state())})
        made[kind] = untouched(make, kind, SEED, Slow(onset=0), beginning)
    return made


@every_task
def test_an_episode_from_the_record_is_the_live_one_bit_for_bit(kind: Kind, records: dict[Kind, Record]) -> None:
    arm = Script({84: [("run.rollback", 71), ("optimizer.lr_scale", 0.25)], 92: [("run.undo_rollback", None)]})
    trainees = [make(kind, SEED), make(kind, SEED)]
    shared = run(trainees[0], Slow(onset=0), arm, records[kind])
    assert shared == run(trainees[1], Slow(onset=0), arm)
    assert shared.interventions == 3 and shared.steps == 100
    assert shared.loss != records[kind].losses[100]
    assert same(weights(trainees[0]), weights(trainees[1]))


@every_task
@pytest.mark.parametrize("name", ["nothing", "mesh"])
@pytest.mark.usefixtures("installed")
def test_arms_play_an_episode_unchanged(kind: Kind, name: str, records: dict[Kind, Record]) -> None:
    arm: Arm = arm_registry.arms()[name]
    ended = run(make(kind, SEED), Slow(onset=0), arm, records[kind])
    assert 0 < ended.steps <= 100
    if name == "nothing":
        assert (ended.interventions, ended.loss) == (0, records[kind].losses[100])
    else:
        assert ended.kept["outcomes"] is not None


def test_the_table_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'images'"):
        task("image")
    monkeypatch.setattr("oven_bench.gym.task_table.TASKS", {"torn": "oven_bench.gym.tasks"})
    with pytest.raises(ConfigError, match=r"oven_bench.gym.tasks declares no task"):
        task("torn")


def test_a_share_of_answers_is_measured_against_all_of_them() -> None:
    of = Task(trainee="", faults="", noise=0.1, shown="loss", share_of_answers=True)
    assert (of.size(0.2), task("wide").size(2.5)) == (1.0, 2.5)
