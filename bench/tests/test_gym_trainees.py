"""What the gym asks of a trainee, of each kind: an episode from the record is the live one, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from bench_testing.gym_line import Script, weights
from oven_bench.gym.episode import play
from oven_bench.gym.fault import Fault, Step, make
from oven_bench.gym.shared_prefix import Record, untouched
from oven_bench.gym.task_table import TASKS, Kind
from oven_core.protocol.actuators import ACTUATORS

SEED = 101


class Late(Fault):
    """Sets in halfway. Its onset is the start: the episode is a hundred steps, and needs no healthy beginning."""

    def settings(self, step: Step) -> None:
        if step.number >= 50:
            step.settings["learning_rate"] *= 10


class WrongClip(Fault):
    def settings(self, step: Step) -> None:
        step.settings["clip"] = 0.02


@pytest.mark.parametrize("kind", TASKS)
def test_a_setting_that_a_fault_got_wrong_is_read_wrong_at_a_copy_too(kind: Kind) -> None:
    own = make(kind, SEED).settings["clip"]
    arm = Script({60: [("grad.clip", own)]})
    beginning = Record(states={0: (0, make(kind, SEED).state())})
    alone = untouched(make, kind, SEED, WrongClip(onset=0), beginning)
    assert 60 in alone.states
    shared = play(make(kind, SEED), WrongClip(onset=0), arm, alone)
    assert shared.interventions == 1
    assert shared == play(make(kind, SEED), WrongClip(onset=0), arm)


@pytest.mark.parametrize("kind", TASKS)
def test_a_reading_that_was_asked_for_comes_with_the_next_step_and_changes_nothing(kind: Kind) -> None:
    held_out = next(metric.name for metric in make(kind, SEED).metrics if metric.held_out)
    alone, evaluated = make(kind, SEED), make(kind, SEED)
    plain = [alone.train_step() for _ in range(5)]
    seen = [evaluated.train_step() for _ in range(2)]
    assert evaluated.actuators.apply("run.evaluate", None).status == "applied"
    seen += [evaluated.train_step() for _ in range(3)]
    assert [held_out in metrics for metrics in seen] == [False, False, True, False, False]
    assert [{n: v for n, v in metrics.items() if n != held_out} for metrics in seen] == plain
    ended = play(make(kind, SEED), WrongClip(onset=0), Script({50: [("run.evaluate", None)]}))
    assert ended.interventions == 0


@pytest.mark.parametrize("kind", TASKS)
def test_a_restored_run_and_a_copy_of_it_take_the_same_steps_bit_for_bit(kind: Kind) -> None:
    trainee, copy = make(kind, SEED), make(kind, SEED)
    for _ in range(12):
        trainee.train_step()
    state = trainee.state()
    first, reached = [trainee.train_step() for _ in range(6)], weights(trainee)
    copy.restore(state)
    copy.gradient_steps = 12
    assert [copy.train_step() for _ in range(6)] == first
    assert torch.equal(weights(copy), reached) and copy.quality() == trainee.quality()
    trainee.restore(state)
    again = [trainee.train_step() for _ in range(6)]
    # Evaluations follow the number of computed steps, which a rollback does not lower.
    bare = [[{k: v for k, v in step.items() if k[:5] != "eval/"} for step in steps] for steps in (first, again)]
    assert bare[0] == bare[1] and torch.equal(weights(trainee), reached)
    assert (trainee.gradient_steps, trainee.cursor) == (24, 18)


@pytest.mark.parametrize("kind", TASKS)
def test_a_trainee_publishes_what_it_announces(kind: Kind) -> None:
    trainee = make(kind, SEED)
    first, *others = [trainee.train_step() for _ in range(40)]
    published = {name for step in others for name, value in step.items() if math.isfinite(value)}
    assert published == {spec.name for spec in trainee.metrics}
    assert "optim/grad_momentum_cos" not in first, "there is no momentum yet"


@pytest.mark.parametrize("kind", TASKS)
def test_an_episode_from_the_record_is_the_live_one_bit_for_bit(kind: Kind) -> None:
    arm = Script({63: [("run.rollback", 41), ("optimizer.lr_scale", 0.25)], 80: [("grad.clip", 0.5)]})
    beginning = Record(states={0: (0, make(kind, SEED).state())})
    alone = untouched(make, kind, SEED, Late(onset=0), beginning)
    trainees = [make(kind, SEED), make(kind, SEED)]
    shared = play(trainees[0], Late(onset=0), arm, alone)
    live = play(trainees[1], Late(onset=0), arm)
    assert shared == live
    assert shared.interventions == 3
    assert shared.loss != alone.losses[100]
    first, second = ([p.tolist() for p in trainee.model.parameters()] for trainee in trainees)
    assert first == second


@pytest.mark.parametrize("kind", TASKS)
def test_a_trainee_announces_its_knobs_as_the_vocabulary_has_them(kind: Kind) -> None:
    specs = make(kind, SEED).actuators.specs()
    assert specs
    for spec in specs:
        known = ACTUATORS[spec.name]
        assert (spec.kind, spec.effect, spec.moves_own_metric) == (known.kind, known.effect, known.moves_own_metric)
