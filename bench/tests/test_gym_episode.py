"""Episodes on a linear model: what is shared changes no bit, no arm is told the fault, no failure passes for calm."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import pytest

from bench_testing.gym_line import FAMILIES, BadStretch, Plain, Script, TooHigh, TooLow, line
from bench_testing.gym_line import NotANumber as NaN
from oven_bench.fixed_rules import Change
from oven_bench.gym import shared_prefix
from oven_bench.gym.arms import Arm, arms
from oven_bench.gym.arms.controller import MeshArm
from oven_bench.gym.episode import Outcome, play
from oven_bench.gym.fault import Fault, fault
from oven_bench.gym.runner import Ground
from oven_bench.gym.shared_prefix import Record, healthy, untouched
from oven_core.protocol.messages import LearnerMessage, Observation, RunStarted, Value
from oven_learner.link.link_interface import Link, UnbuiltMessage, build_message
from oven_learner.testing import FakeLink

SEED = 101
NOTHING, NOT_A_NUMBER, BEST_CHECKPOINT = (arms()[name] for name in ("nothing", "not_a_number", "best_checkpoint"))


class Listener(FakeLink):
    """An arm and its link: keeps what it is given, and says what `says` does."""

    name = "listener"
    keeps_best = False

    def __init__(self, plan: dict[int, tuple[str, Value]] | None = None) -> None:
        super().__init__(plan)
        self.messages: list[bytes] = []

    def link(self, run: str, rng: Random) -> Link:
        self.messages = [run.encode(), repr(rng.random()).encode()]
        return self

    def send(self, unbuilt: UnbuiltMessage) -> None:
        super().send(unbuilt)
        self.messages.append(self.sent[-1].wire())


class ListeningArm:
    """An arm, and what its link is told."""

    name = "heard"

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self.keeps_best = arm.keeps_best
        self.messages: list[LearnerMessage] = []

    def link(self, run: str, rng: Random) -> Link:
        link, messages = self._arm.link(run, rng), self.messages
        send = link.send

        def listen(unbuilt: UnbuiltMessage) -> None:
            messages.append(message := build_message(unbuilt))
            send(lambda: message)

        link.send = listen  # type: ignore[method-assign]
        return link


@cache
def beginning() -> Record:
    return healthy(line, "pretraining", SEED)


def alone(family: type[Fault]) -> Record:
    return _alone(family.name)


@cache
def _alone(name: str) -> Record:
    family = next(family for family in FAMILIES if family.name == name)
    return untouched(line, family.kind, SEED, shared_prefix.draw(family, SEED), beginning())


def played(family: type[Fault], arm: Arm, record: Record | None) -> tuple[Outcome, object]:
    trainee = line(family.kind, SEED)
    ended = play(trainee, shared_prefix.draw(family, SEED), arm, record)
    return ended, {name: value.tolist() for name, value in trainee.state()["model"].items()}


ARMS = [
    arms()["rule.rollback_cut_8"],
    arms()["rule.rollback_skip"],
    NOT_A_NUMBER,
    BEST_CHECKPOINT,
    Script({40: [("optimizer.lr_scale", 0.25)]}),
    Script({43: [("run.rollback", 21)], 150: [("data.skip", 7)]}),
    Script(
        {3: [("run.checkpoint", None), ("run.evaluate", None)], 104: [("run.rollback", 0), ("optimizer.lr_scale", 0.5)]}
    ),
    Script({100: [("run.stop", None)]}),
    Script({127: [("run.hold", None)]}),
]


@pytest.mark.parametrize(
    ("family", "arm"),
    [*((BadStretch, arm) for arm in ARMS), *((family, ARMS[0]) for family in FAMILIES), (NaN, ARMS[2])],
    ids=lambda parameter: parameter.name,
)
def test_an_episode_from_the_record_is_the_live_one_bit_for_bit(family: type[Fault], arm: Arm) -> None:
    shared, weights = played(family, arm, alone(family))
    unshared, live = played(family, arm, None)
    assert shared == unshared
    if shared.interventions:
        assert repr(weights) == repr(live)


def test_what_an_arm_hears_is_the_same_from_the_record_and_live() -> None:
    live, shared = Listener(), Listener()
    played(BadStretch, live, None)
    played(BadStretch, shared, alone(BadStretch))
    assert live.messages == shared.messages
    assert len(live.messages) > shared_prefix.PREFIX + shared_prefix.HORIZON


def test_doing_nothing_ends_where_the_record_does_and_the_twin_where_a_healthy_run_does() -> None:
    ground = Ground(TooHigh, SEED, line)
    row = ground.play(NOTHING)
    assert row.loss == row.nothing > row.twin
    assert row.interventions == 0
    trainee = line("pretraining", SEED)
    for _ in range(shared_prefix.last_step(ground.fault)):
        trainee.train_step()
    assert row.twin == trainee.quality()


def test_the_best_checkpoint_is_gone_back_to_only_where_it_reads_better() -> None:
    worse, better = Ground(TooHigh, SEED, line), Ground(TooLow, SEED, line)
    row = worse.play(BEST_CHECKPOINT)
    assert (row.interventions, row.steps) == (1, row.onset + shared_prefix.HORIZON)
    trainee = line("pretraining", SEED)
    readings = [trainee.train_step(worse.fault).get("eval/loss", math.inf) for _ in range(row.steps)]
    assert row.loss == min(readings) < row.nothing
    untouched = better.play(BEST_CHECKPOINT)
    assert (untouched.interventions, untouched.loss) == (0, untouched.nothing)


def test_the_controller_is_announced_the_choice_of_the_end_and_a_rule_is_not() -> None:
    def announced(arm: Arm) -> set[str]:
        messages = ListeningArm(arm)
        played(BadStretch, messages, alone(BadStretch))
        return {
            spec.name for message in messages.messages if isinstance(message, RunStarted) for spec in message.actuators
        }

    assert "run.best" in announced(MeshArm("mesh", agents=("lr_cooldown",)))
    assert "run.best" not in announced(NOTHING)


def test_steps_that_a_rollback_threw_away_count_and_a_skip_moves_on() -> None:
    plan: dict[int, list[Change]] = {shared_prefix.LATEST + 20: [("run.rollback", 60)]}
    ended, _ = played(Plain, Script(plan), alone(Plain))
    assert ended.steps == shared_prefix.last_step(shared_prefix.draw(Plain, SEED))
    assert ended.interventions == 1
    assert ended.loss != alone(Plain).losses[ended.steps]


def test_a_checkpoint_is_no_intervention_and_what_changes_nothing_is_none() -> None:
    plan: dict[int, list[Change]] = {20: [("run.checkpoint", None)], 30: [("optimizer.lr_scale", 1.0)]}
    ended, _ = played(Plain, Script(plan), alone(Plain))
    assert ended.interventions == 0
    assert ended.loss == alone(Plain).losses[ended.steps]


def test_an_arm_that_stops_or_holds_ends_the_episode_and_is_scored_by_what_stands() -> None:
    for action in ("run.stop", "run.hold"):
        ended, _ = played(Plain, Script({50: [(action, None)]}), alone(Plain))
        assert ended.steps == 50
        trainee = line("pretraining", SEED)
        for _ in range(50):
            trainee.train_step()
        assert ended.loss == trainee.quality()


class Raising(Listener):
    def send(self, unbuilt: UnbuiltMessage) -> None:
        if isinstance(build_message(unbuilt), Observation):
            raise RuntimeError("the arm is broken")


def test_an_arm_that_raises_fails_its_episode_instead_of_looking_calm() -> None:
    with pytest.raises(RuntimeError, match="the arm is broken"):
        played(Plain, Raising(), alone(Plain))


@fault("line.another", kind="pretraining")
class Renamed(TooHigh):
    """The same fault under another name: the name may draw another severity, and nothing else."""


def test_no_arm_is_told_which_fault_it_is() -> None:
    case = shared_prefix.draw(TooHigh, SEED)
    messages = []
    for family in (TooHigh, Renamed):
        listener = Listener()
        record = untouched(line, family.kind, SEED, case, beginning())
        play(line(family.kind, SEED), case, listener, record)
        messages.append(listener.messages)
    assert messages[0] == messages[1]
    assert not any(b"line." in each or b"too_high" in each for each in messages[0])


def test_until_the_onset_all_faults_of_a_seed_look_the_same() -> None:
    """Run id, the arm's generator, the announcement and every observation before the first of the onsets."""
    messages = []
    for family in FAMILIES:
        if shared_prefix.draw(family, SEED).onset:
            listener = Listener()
            Ground(family, SEED, line).play(listener)
            messages.append(listener.messages[: 3 + shared_prefix.PREFIX])
    assert len(messages) > 2
    assert all(each == messages[0] for each in messages)
