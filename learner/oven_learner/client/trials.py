"""Trials as the client makes them: an order from the log begins one between two steps, and what it showed is said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from oven_core.errors import reason
from oven_core.protocol.messages import LearnerMessage
from oven_core.protocol.trial_messages import ArmReading, BranchObservation, TrialEnded, TrialStarted
from oven_learner.actuators import Actuators, Applied
from oven_learner.ranks import Ranks
from oven_learner.trials.branchable import Branchable
from oven_learner.trials.branches import Branches, Marked, Result

log = logging.getLogger("oven.learner")


class Run(Protocol):
    """Where the run is, and how it says what a trial showed: as `OvenClient` does."""

    tick: int
    step: int

    def say(self, kind: type[LearnerMessage], **fields: Any) -> None:
        """Put a message into the log."""

    def publish_observation(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Put a step of the run into the log."""

    def publish_receipt(self, applied: Applied, actuator: str, *, decision_id: str, tick: int, step: int) -> None:
        """Put the outcome of a decision into the log."""


class Trials:
    """The trials of one client. On every rank alike: each method is called on all of them at the same steps."""

    def __init__(
        self,
        run: Run,
        training: Branchable | None,
        actuators: Actuators,
        snapshots: object,
        ranks: Ranks,
        settle: Callable[[], object],
    ) -> None:
        """`training`: None where no trial can be made. `settle` publishes what is still on its way from the device."""
        self.thrown_away = 0
        """Gradient steps of branches that were not kept, so far."""
        self._run, self._training, self._actuators, self._ranks = run, training, actuators, ranks
        self._snapshots = snapshots if isinstance(snapshots, Marked) else None
        self._settle = settle
        self._ordered: TrialStarted | None = None
        self._branches: Branches | None = None
        self._never = ""  # why no further trials are made
        self._astray = ""  # how the loop left the branch
        self._from = (0, 0)  # tick and step at which the branches began

    @property
    def reading(self) -> str:
        """The metric by which arms are compared; empty where no trial can be made."""
        if self._training is None:
            return ""
        try:
            why = self._training.problem()
            if not why:
                return self._training.reading.name
        except Exception as error:  # no trial is worth the training
            why = reason(error)
        log.info("no trials: %s", why)
        return ""

    @property
    def under_way(self) -> bool:
        """Whether a branch is being played."""
        return self._branches is not None

    def take(self, order: TrialStarted) -> None:
        """A trial was ordered: it begins at the next boundary that suits."""
        if self._ordered is not None:
            why = f"trial {order.id} took its place"
            self._say(self._ordered, _refused(why), self._run.tick, self._run.step)
        self._ordered = order

    def begin_if_ordered(self, waits: str) -> None:
        """Between two steps. `waits`: why not yet, if so; it is tried again at the next boundary."""
        order = self._ordered
        if order is None or (waits and self._run.tick < order.expires_at_tick):
            return
        self._ordered = None
        why = f"it came {self._run.tick - order.expires_at_tick} ticks after it expired"
        if self._run.tick <= order.expires_at_tick:
            why = waits or self._begun(order)
        if why:
            log.info("no trial: %s", why)
            self._say(order, _refused(why), self._run.tick, self._run.step)

    def _begun(self, order: TrialStarted) -> str:
        if self._training is None:
            return "this learner makes no trials"
        self._settle()
        if self._never:
            return self._never
        branches = Branches(order, self._training, self._run, self._actuators, self._snapshots, self._ranks)
        self._from = self._run.tick, self._run.step
        if not (why := branches.begin()):
            self._branches = branches
        return why

    def took(self, tick: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether a step's metrics are a branch's. What was measured before it began is the run's."""
        branches = self._branches
        if branches is None or tick <= self._from[0]:
            return False
        if branches.observe(tick, step, metrics):
            told = {"trial": branches.trial.id, "arm": branches.arm, "tick": tick, "step": step}
            self._run.say(BranchObservation, metrics=dict(metrics), **told)
        return True

    def counted(self, step: int) -> None:
        """The loop's own number of the step that it has made. Where what a step does may follow from it, a loop that
        counts on plays other steps in each branch, and what they show cannot be compared."""
        branches = self._branches
        if branches is None or not branches.moved or self._training is None:
            return
        branches.moved = False
        if self._training.by_steps and step != self._run.step + 1:
            self._astray = (
                f"the loop continued with step {step}, where the branch was put back to step {self._run.step}: begin "
                "each step at client.step + 1, or give connect() the scheduler"
            )

    def advance(self) -> bool:
        """After a step: on with the branch that it was of, if it was of one. Whether a branch is played next, too."""
        if self._branches is not None:
            self._settle()
            if self._astray:
                self._never = self._astray
                log.warning("no further trials: %s", self._never)
                self.interrupt(self._astray)
                return False
            try:
                result = self._branches.advance()
            except Exception as error:  # no room for a copy, most likely
                log.exception("the trial is given up; training continues")
                result = self._branches.interrupt(f"it failed: {reason(error)}")
            if result is not None:
                self._ended(result)
        return self.under_way

    def interrupt(self, why: str) -> None:
        """The control's branch continues."""
        if self._branches is not None:
            self._settle()
            self._ended(self._branches.interrupt(why))

    def end(self, why: str) -> None:
        """No more steps will come."""
        self.interrupt(why)
        if (order := self._ordered) is not None:
            self._ordered = None
            self._say(order, _refused(why), self._run.tick, self._run.step)

    def _ended(self, result: Result) -> None:
        assert self._branches is not None
        order, slow, self._branches = self._branches.trial, self._branches.slow, None
        if slow and self._training is not None and self._training.by_clock:
            log.warning("no further trials: %s", slow)
            self._never = slow
        self.thrown_away += result.extra
        if result.status == "refused":  # the control cannot be read, and will not the next time
            log.warning("no further trials: %s", result.reason)
            self._never = result.reason
        log.info("trial %s: %s, arm %d is kept, %d steps extra", order.id, result.status, result.kept, result.extra)
        self._say(order, result, *self._from)

    def _say(self, order: TrialStarted, result: Result, tick: int, step: int) -> None:
        """What it showed, the outcome of each decision, and the steps of the kept arm as the run's own."""
        self._settle()
        self._run.say(
            TrialEnded,
            trial=order.id,
            status=result.status,
            kept=result.kept,
            arms=result.arms,
            tick=tick,
            step=step,
            steps=result.steps,
            extra=result.extra,
            seconds=result.seconds,
            reason=result.reason,
        )
        for decision_id, actuator, applied in receipts(order, result):
            at = step
            if applied.status == "applied" and self._actuators.spec(actuator).moves_weights:
                at = int(applied.after) if isinstance(applied.after, int | float) else step  # as of any rollback
            self._run.publish_receipt(applied, actuator, decision_id=decision_id, tick=tick, step=at)
        for played in result.played:
            self._run.publish_observation(played.tick, played.step, played.metrics)


def receipts(order: TrialStarted, result: Result) -> list[tuple[str, str, Applied]]:
    """(decision, actuator, its outcome) of all that the trial tried, the kept arm's first."""
    found: list[tuple[str, str, Applied]] = []
    for index in sorted(range(1, len(order.arms)), key=lambda index: index != result.kept):
        arm = order.arms[index]
        reading = result.arms[index] if index < len(result.arms) else ArmReading()
        for decision, actuator in zip(arm.decisions, arm.changes, strict=False):
            if index == result.kept:
                applied = result.applied.get(actuator, Applied("unknown", reason="nothing was read back"))
            else:
                applied = Applied("skipped", reason=_why_not(order, result, reading))
            found.append((decision, actuator, applied))
    return found


def _why_not(order: TrialStarted, result: Result, reading: ArmReading) -> str:
    if result.status != "completed":
        return f"the trial was {result.status}: {result.reason}"
    if reading.reason or reading.gain is None:
        return f"the trial kept {_name(result.kept)}: {reading.reason or 'it was not read'}"
    gain = f"a gain of {reading.gain:.3g} ± {reading.noise or 0.0:.2g} in {order.reading}"
    return f"the trial kept {_name(result.kept)}: {gain}, {order.margin:.3g} standard errors are needed"


def _name(kept: int) -> str:
    return f"arm {kept}" if kept else "the control"


def _refused(why: str) -> Result:
    return Result("refused", 0, (), 0, 0, 0.0, why, (), {})
