"""Trials as the client plays them: which branch the run goes on with, whatever happens on the way."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.gym_line import Line
from tests.support.trial_link import TrialLink, order

from oven_bench.gym.episode import Branches, Training
from oven_bench.gym.fault import NOTHING
from oven_core.protocol.messages import LearnerMessage, LogMessage
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.trial_messages import BranchObservation
from oven_learner.client.client import OvenClient
from oven_learner.rollback.in_memory import Snapshots
from oven_learner.testing import decision
from oven_learner.trials.branchable import Branchable

STEPS = 30


class Run:
    """A line that is trained for thirty steps."""

    def __init__(
        self, link: TrialLink, wrap: Callable[[Branches], Branchable] = lambda own: own, steps: int = STEPS
    ) -> None:
        self.line = Line("pretraining", 3)
        training = Training(self.line, NOTHING, None)
        self.link = link
        self.client = OvenClient(
            link,
            self.line.actuators,
            metrics=self.line.metrics,
            max_steps=steps,
            snapshots=Snapshots(training.take, training.restore, credit=math.inf),
            trials=wrap(Branches(training, self.line)),
        )
        self.client.start()
        while self.client.step < steps and not self.client.stopping:
            metrics = training.train_step()
            self.client.observe(training.step, metrics)
            self.client.poll()
        self.client.end_trial("the run ends")
        self.computed = training.steps
        self.client.close("completed")

    def bits(self) -> list[float]:
        momentum = [self.line.optimizer.state[p]["momentum_buffer"] for p in self.line.model.parameters()]
        return [x for t in (*self.line.model.parameters(), *momentum) for x in t.detach().flatten().tolist()]

    def losses(self) -> list[tuple[int, int, float]]:
        return [(one.tick, one.step, one.metrics["loss"]) for one in self.link.observed()]


@pytest.fixture(scope="module")
def plain() -> Run:
    return Run(TrialLink())


CHANGES: tuple[dict[str, Any], ...] = (
    {"optimizer.lr_scale": 50.0},
    {"grad.clip": 0.01},
    {"run.rollback": 2},
    {"run.rollback": 2, "optimizer.lr_scale": 0.002},
)


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("cooldown", [0, 3])
def test_where_the_control_is_kept_nothing_tells_of_the_trial(
    plain: Run, change: dict[str, Any], cooldown: int
) -> None:
    run = Run(TrialLink(order(6, change, steps=5, cooldown=cooldown, margin=1e9)))
    (ended,) = run.link.ended()
    assert (ended.status, ended.kept, ended.reason) == ("completed", 0, ""), ended
    assert run.bits() == plain.bits() and run.losses() == plain.losses()
    behind = 6 - 5 + 5 if "run.rollback" in change else 0  # the copies are of ticks 0, 5, 10, …
    assert ended.steps == 10 + behind + 2 * cooldown and ended.extra == ended.steps - 5
    assert run.computed == STEPS + ended.extra, "every gradient step is charged"
    assert {receipt.status for receipt in run.link.receipts()} == {"skipped"}


@pytest.mark.parametrize(
    "change", [{"optimizer.lr_scale": 0.2}, {"grad.clip": 5.0, "optimizer.lr_scale": 0.6}], ids=str
)
def test_where_a_change_is_kept_the_run_is_as_if_it_had_been_made_at_once(change: dict[str, Any]) -> None:
    run = Run(TrialLink(order(12, change, steps=5, cooldown=2, margin=0.0)))
    link = TrialLink()
    link.incoming.extend(decision(name, value, number=n, apply_at=13) for n, (name, value) in enumerate(change.items()))
    direct = Run(link)
    (ended,) = run.link.ended()
    assert ended.kept == 1, ended
    assert run.bits() == direct.bits() and run.losses() == direct.losses()
    assert [receipt.status for receipt in run.link.receipts()] == ["applied"] * len(change)


def test_of_several_arms_the_best_is_kept_and_two_copies_are_held() -> None:
    held: list[int] = []

    class Watched(Branches):
        alive = 0

        def take(self) -> object:
            state = Copy(super().take())
            Watched.alive += 1
            weakref.finalize(state, _gone)
            held.append(Watched.alive)
            return state

        def restore(self, state: Any) -> None:
            super().restore(state.inner)

    class Copy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    def _gone() -> None:
        Watched.alive -= 1

    def wrapped(own: Branches) -> Branchable:
        return Watched(own._training, own._trainee)  # noqa: SLF001

    arms = ({"optimizer.lr_scale": 0.5}, {"optimizer.lr_scale": 0.2}, {"optimizer.lr_scale": 30.0})
    run = Run(TrialLink(order(20, *arms, steps=5, margin=0.0)), wrapped)
    (ended,) = run.link.ended()
    gains = [arm.gain or 0.0 for arm in ended.arms]
    assert len(gains) == 4 and ended.kept > 0, gains
    assert ended.kept == max(range(4), key=lambda n: gains[n])
    assert max(held) <= 2 and Watched.alive == 0
    statuses = {r.decision_id: r.status for r in run.link.receipts()}
    assert statuses[f"d{ended.kept - 1}-optimizer.lr_scale"] == "applied" and len(statuses) == 3


@pytest.mark.parametrize("place", [1, 2, 3])
def test_whichever_arm_is_kept_the_run_is_as_if_its_change_had_been_made_at_once(place: int) -> None:
    """The best of them in each place; the others harm."""
    best: dict[str, Any] = {"grad.clip": 5.0, "optimizer.lr_scale": 0.2}
    arms: list[dict[str, Any]] = [{"optimizer.lr_scale": 50.0}, {"run.rollback": 2, "optimizer.lr_scale": 20.0}]
    arms.insert(place - 1, best)
    run = Run(TrialLink(order(12, *arms, steps=5, margin=0.0)))
    link = TrialLink()
    link.incoming.extend(decision(name, value, number=n, apply_at=13) for n, (name, value) in enumerate(best.items()))
    direct = Run(link)
    (ended,) = run.link.ended()
    assert ended.kept == place, ended
    assert run.bits() == direct.bits() and run.losses() == direct.losses()
    statuses = {receipt.decision_id[:2]: receipt.status for receipt in run.link.receipts()}
    assert statuses == {f"d{n}": "applied" if n == place - 1 else "skipped" for n in range(3)}
    assert run.computed == STEPS + ended.extra


@pytest.mark.parametrize("said", ["hold", "stop", "set"])
@pytest.mark.parametrize("at", [1, 4, 5, 6, 9, 10, 13])
def test_an_operators_word_ends_the_trial_and_the_control_goes_on(plain: Run, said: str, at: int) -> None:
    """At the `at`-th step of the trial: of the control, its cooling copy, the arm, and its cooling copy."""
    seen = 0

    def heard(message: LearnerMessage) -> LogMessage | None:
        nonlocal seen
        if said == "hold" and getattr(message, "actuator", "") == "run.hold":
            return OperatorCommand(id="on", action="resume")
        if not isinstance(message, BranchObservation):
            return None
        seen += 1
        if seen != min(at, 10):
            return None
        if said == "set":
            made = decision("grad.clip", 0.2, number=900, apply_at=1, expires=100)
            return made.model_copy(update={"command": "c1"})
        return OperatorCommand(id="c1", action="hold" if said == "hold" else "stop")

    run = Run(TrialLink(order(6, {"optimizer.lr_scale": 50.0}, steps=5, cooldown=2), heard=heard))
    (ended,) = run.link.ended()
    if at >= 10 and ended.status == "completed":
        assert ended.kept == 0
    else:
        assert (ended.status, ended.kept) == ("interrupted", 0) and "operator" in ended.reason
    until = len(run.losses())
    if said == "set":  # what the operator set acts from the boundary at which the trial ended
        until = next(r.tick for r in run.link.receipts() if r.actuator == "grad.clip" and r.status == "applied")
    assert run.losses()[:until] == plain.losses()[:until]
    assert run.computed == run.client.step + ended.extra
    if said == "hold":
        assert run.bits() == plain.bits()


def _broken(which: set[int], examples: Callable[[], list[float]]) -> Callable[[], list[float]]:
    """The n-th reading has a NaN in it."""
    count = 0

    def read() -> list[float]:
        nonlocal count
        count += 1
        return [math.nan, *examples()[1:]] if count - 1 in which else examples()

    return read


@pytest.mark.parametrize(("broken", "kept"), [({0}, 1), ({1}, 0), ({0, 1}, 0)])
def test_a_branch_that_is_not_finite_loses(broken: set[int], kept: int) -> None:
    def wrapped(own: Branches) -> Branchable:
        own.examples = _broken(broken, own.examples)  # type: ignore[method-assign]
        return own

    run = Run(TrialLink(order(6, {"optimizer.lr_scale": 0.5})), wrapped)
    (ended,) = run.link.ended()
    assert ended.kept == kept
    arm = ended.arms[1]
    measured = None if broken == {0, 1} else math.inf if kept else -math.inf
    assert arm.gain == measured and bool(arm.reason) == (measured is None)


def test_what_fails_on_the_way_gives_up_the_trial_and_never_the_training(plain: Run) -> None:
    for broken in range(1, 4):  # at the beginning, at the control's end, and in the arm

        def wrapped(own: Branches, broken: int = broken) -> Branchable:
            take, count = own.take, 0

            def failing() -> object:
                nonlocal count
                count += 1
                if count == broken:
                    raise MemoryError("no room for a copy")
                return take()

            own.take = failing  # type: ignore[method-assign]
            return own

        run = Run(TrialLink(order(6, {"optimizer.lr_scale": 50.0}, steps=5, cooldown=2)), wrapped)
        (ended,) = run.link.ended()
        assert ended.status in ("refused", "interrupted") and "no room for a copy" in ended.reason
        assert run.bits() == plain.bits() and run.losses() == plain.losses()


def test_an_arm_whose_knob_has_that_value_already_is_never_kept() -> None:
    run = Run(TrialLink(order(6, {"optimizer.lr_scale": 1.0}, margin=0.0)))
    (ended,) = run.link.ended()
    assert (ended.kept, ended.arms[1].gain, ended.arms[1].noise) == (0, 0.0, 0.0)


def test_a_change_that_cannot_be_made_is_no_arm() -> None:
    run = Run(TrialLink(order(6, {"optimizer.lr_scale": 1e9}), order(20, {"learning.rate": 1.0})))
    one, other = run.link.ended()
    assert (one.status, one.kept, one.steps, one.extra) == ("completed", 0, 4, 0)
    assert "outside the bounds" in one.arms[1].reason
    assert (other.status, other.reason) == ("refused", "there is no actuator 'learning.rate'")


def test_a_trial_waits_for_what_is_not_read_back_and_expires() -> None:
    late = order(6, {"grad.clip": 0.5}).model_copy(update={"expires_at_tick": 5})
    run = Run(TrialLink(late))
    (ended,) = run.link.ended()
    assert (ended.status, ended.reason) == ("refused", "it came 1 ticks after it expired")


def test_nothing_is_tried_where_the_learner_cannot() -> None:
    def wrapped(own: Branches) -> Branchable:
        own.problem = lambda: "nothing is held out example by example"  # type: ignore[method-assign]
        return own

    run = Run(TrialLink(order(6, {"grad.clip": 0.5})), wrapped)
    (ended,) = run.link.ended()
    assert run.link.announced() == ""
    assert (ended.status, ended.reason) == ("refused", "nothing is held out example by example")


def test_what_shows_later_than_a_trial_plays_is_not_tried() -> None:
    def wrapped(own: Branches) -> Branchable:
        own.lagging = frozenset({"data.skip"})
        return own

    run = Run(TrialLink(order(6, {"data.skip": 3})), wrapped)
    (ended,) = run.link.ended()
    assert (ended.status, ended.steps) == ("refused", 0) and ended.reason.startswith(
        "a change of data.skip shows in data"
    )


def test_a_second_order_before_the_first_has_begun_takes_its_place() -> None:
    first, second = order(6, {"grad.clip": 0.5}), order(6, {"grad.clip": 0.2}).model_copy(update={"id": "second"})
    run = Run(TrialLink(first, second))
    given_up, made = run.link.ended()
    assert (given_up.trial, given_up.status, given_up.reason) == ("t6", "refused", "trial second took its place")
    assert (made.trial, made.status) == ("second", "completed")


def test_a_run_that_ends_in_a_branch_ends_with_the_controls(plain: Run) -> None:
    run = Run(TrialLink(order(27, {"optimizer.lr_scale": 50.0}, steps=2, cooldown=1)))
    (ended,) = run.link.ended()
    assert ended.kept == 0 and run.losses() == plain.losses()[: len(run.losses())]
    assert torch.isfinite(next(run.line.model.parameters())).all()
