"""One trial as the learner plays it: the training's own loop continues from one state once for each arm.

The control comes first, undisturbed, so that it is the run itself until the arms are compared; then the state is put
back, an arm's changes are made, and the same steps are played on the same batches and random numbers. Of an arm that
differs in rate a copy is cooled down before it is read. At most two copies of the training are held beside it: where it
began, or the arm that is cooling down, and the best end so far.

    begin ─ control ─ (cool down) ─ read ─┬─ arm ─ (cool down) ─ read ─┬─ … ─ the best end, and on
                                          └─ put back, make changes ───┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from oven_core.errors import reason
from oven_core.protocol.messages import Value
from oven_core.protocol.trial_messages import ArmReading, TrialStarted
from oven_learner.actuators import DONE, Actuators, Applied, difference
from oven_learner.ranks import Ranks
from oven_learner.trials import comparison
from oven_learner.trials.branchable import Branchable

Status = Literal["completed", "interrupted", "refused"]
LONGEST = 4
"""× the trial's steps: the longest that a rolled-back arm may take to come back to where the control begins."""


@dataclass(frozen=True, slots=True)
class Played:
    """One step of a branch: what the run's observation will say if the branch is kept."""

    tick: int
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class End:
    """The end of an arm: the training's state, where the run stands then, its settings, and what was observed."""

    arm: int
    state: Any
    tick: int
    step: int
    settings: Mapping[str, Value]
    marks: Any
    played: Sequence[Played]
    applied: Mapping[str, Applied]


@dataclass(frozen=True, slots=True)
class Result:
    """How a trial ended. `played` are the steps of the kept arm, `applied` what was read back of its changes."""

    status: Status
    kept: int
    arms: tuple[ArmReading, ...]
    steps: int
    extra: int
    seconds: float
    reason: str
    played: Sequence[Played]
    applied: Mapping[str, Applied]


class Position(Protocol):
    """Where the run is, as the client counts. A branch moves both on, and back."""

    tick: int
    step: int


@runtime_checkable
class Marked(Protocol):
    """Rollback copies: which there are can be put back after a branch has gone back to one of them."""

    def mark(self) -> Any: ...

    def reset(self, mark: Any) -> None: ...

    def settle(self) -> None: ...


@dataclass
class Branches:
    """A trial under way. `played` and `advance` are called after each step, on every rank alike."""

    trial: TrialStarted
    training: Branchable
    position: Position
    actuators: Actuators
    snapshots: Marked | None
    ranks: Ranks
    clock: Callable[[], float] = time.monotonic
    moved: bool = False
    """The training was put back since its last step; who counts steps sets it to False."""
    slow: str = ""
    """Why reading the examples costs more than it tells, by the clock; empty while it does not."""
    arm: int = 0
    _start: End | None = None
    _best: End | None = None
    _control: Sequence[float] = ()
    _readings: list[ArmReading] = field(default_factory=list)
    _applied: dict[str, Applied] = field(default_factory=dict)
    _played: list[Played] = field(default_factory=list)
    _left: int = 0  # steps that this arm has still to play
    _cooling: End | None = None  # the arm's end, while a copy of it cools down
    _cooled: int = 0
    _steps: int = 0
    _began: float = 0.0
    _read_s: float = 0.0

    def begin(self) -> str:
        """Take the state that all arms start from. Why the trial cannot be made, in words, on every rank the same;
        empty when it began."""
        self._began = self.clock()
        why = next((why for why in self.ranks.each(self._begun()) if why), "")
        if why:
            self.training.finish()
        return why

    def _begun(self) -> str:
        """On this rank."""
        if len(self.trial.arms) > 2 and self.trial.cooldown:
            return "of arms that are cooled down only one fits beside the control"
        unknown = [name for arm in self.trial.arms for name in arm.changes if name not in self.actuators]
        if unknown:
            return f"there is no actuator {unknown[0]!r}"
        if lagging := [name for arm in self.trial.arms for name in arm.changes if name in self.training.lagging]:
            return f"a change of {lagging[0]} shows in data that is read later than a trial plays"
        try:
            if why := self.training.problem():
                return why
            self._start = self._end()
        except Exception as error:  # out of memory, most likely
            return f"the training could not be copied: {reason(error)}"
        self._left = self.trial.steps
        return ""

    def observe(self, tick: int, step: int, metrics: Mapping[str, float]) -> bool:
        """A step's metrics; whether they are an arm's own, and not those of its cooling copy."""
        if self._cooling is not None:
            return False
        self._played.append(Played(tick, step, dict(metrics)))
        return True

    def advance(self) -> Result | None:
        """After a step: on with the arm, with the next one, or the end."""
        self._steps += 1
        if self._cooling is not None:
            self._cooled += 1
            if self._cooled < self.trial.cooldown:
                self._cool()
                return None
        else:
            self._left -= 1
            if self._left > 0:
                return None
            if self.trial.cooldown:
                self._cooling, self._cooled = self._end(), 0
                self._cool()
                return None
        return self._arm_ended()

    def interrupt(self, why: str, status: Status = "interrupted") -> Result:
        """The control's branch continues: as far as it has been played, from its end, or where that was given up for a
        better one from its beginning."""
        if self.arm == 0 and self._cooling is None:
            return self._result(status, 0, why, self._played, {})
        ends = (self._cooling, self._best, self._start)
        control = next(end for end in ends if end is not None and end.arm == 0)
        self._restore(control)
        return self._result(status, 0, why, control.played, {})

    def _arm_ended(self) -> Result | None:
        """Read the arm and keep its end if it is the best so far; begin the next. An evaluation that fails says nothing
        of the arm: without the control's reading no trial can be made, and without the arm's this one is given up."""
        played_s, began = self.clock() - self._began - self._read_s, self.clock()
        examples, failed, unused = self.ranks.same((*self._read(), self._unused()))
        if failed:
            return self.interrupt(failed, "interrupted" if self.arm else "refused")
        self._read_s += self.clock() - began
        if self.arm == 0:
            self.slow = self.ranks.same(_slow(self._read_s, played_s, len(examples)))
        if self.arm == 0:
            self._control = examples
        sign = 1 if self.training.reading.better == "up" else -1
        found = comparison.reading(examples, self._control, sign)
        if self.arm == 0:
            found = found.model_copy(update={"gain": None, "noise": None})
        return self._close_arm(found.model_copy(update={"reason": unused}) if unused else found)

    def _unused(self) -> str:
        """Which change of this arm no step has used, and why; empty where all were."""
        for name, applied in self._applied.items():
            proof = self.actuators.proof(name)
            why = proof.verdict(ended=True) if proof is not None and applied.status == "applied" else ""
            if why != "":
                return f"{name} was not used: {why or 'no step has shown it'}"
        return ""

    def _close_arm(self, found: ArmReading) -> Result | None:
        self._readings.append(found)
        last = self.arm + 1 == len(self.trial.arms)
        kept = comparison.best(self._readings, self.trial.margin)
        if kept == self.arm:  # the control is, as the first
            if last and self._cooling is None:
                return self._completed(kept)
            self._best = None  # before the next is copied: two at a time
            self._best = self._cooling or self._end()
        self._cooling = None
        if last:
            return self._completed(kept)
        return self._next_arm()

    def _next_arm(self) -> Result | None:
        """Back to the start, with the next arm's changes. Where one cannot be made, its reading says why."""
        assert self._start is not None and self._best is not None
        self._restore(self._start)
        self.arm += 1
        if self.arm + 1 == len(self.trial.arms) and self._best.arm == 0:
            self._start = None  # nobody goes back there any more
        self._played, self._applied = [], {}
        before, problem = self.position.step, ""
        for name, value in self.trial.arms[self.arm].changes.items():
            if self.snapshots is None and self.actuators.spec(name).moves_weights:
                problem = problem or f"the way back from {name} is not kept here"
                continue
            each = self.ranks.each(self.actuators.apply(name, value))
            applied, differs = each[0], difference(each)
            self._applied[name] = applied
            proof = self.actuators.proof(name)
            if applied.status == "applied" and proof is not None:
                proof.begin(applied.before)
            if differs:
                problem = problem or f"{name} came out differently on the ranks: {differs}"
            elif applied.status not in DONE:
                problem = problem or f"{name} was {applied.status}: {applied.reason}"
        behind = before - self.position.step
        if not problem and behind > LONGEST * self.trial.steps:
            problem = f"it goes back {behind} steps; at most {LONGEST * self.trial.steps} are played again in a trial"
        self._left = self.trial.steps + max(0, behind)
        return self._close_arm(ArmReading(reason=problem)) if problem else None

    def _completed(self, kept: int) -> Result:
        if self._best is not None and not (kept == self.arm and self._best.arm != kept):
            self._restore(self._best)
            return self._result("completed", kept, "", self._best.played, self._best.applied)
        return self._result("completed", kept, "", self._played, self._applied)

    def _result(
        self,
        status: Status,
        kept: int,
        why: str,
        played: Sequence[Played],
        applied: Mapping[str, Applied],
    ) -> Result:
        self.training.finish()
        if self.snapshots is not None:
            self.snapshots.settle()
        extra, seconds = self._steps - len(played), self.clock() - self._began
        return Result(status, kept, tuple(self._readings), self._steps, extra, seconds, why, played, applied)

    def _read(self) -> tuple[Sequence[float], str]:
        """The examples, and why there are none."""
        try:
            return list(self.training.examples()), ""
        except Exception as error:
            return [], f"the held-out examples could not be read: {reason(error)}"

    def _cool(self) -> None:
        """The next step of the copy, on rates that fall in a straight line."""
        assert self._cooling is not None
        left = 1 - (self._cooled + 1) / (self.trial.cooldown + 1)
        for name, scale in self._cooling.settings.items():
            if self.actuators.spec(name).scales_rate and isinstance(scale, int | float):
                self.actuators.apply(name, scale * left)

    def _end(self) -> End:
        settings = {spec.name: spec.value for spec in self.actuators.specs() if spec.kind != "action"}
        marks = self.snapshots.mark() if self.snapshots is not None else None
        at, state = self.position, self.training.take()
        return End(self.arm, state, at.tick, at.step, settings, marks, list(self._played), dict(self._applied))

    def _restore(self, end: End) -> None:
        """Settings are set again: who restores a state has those that live in it, and not the others."""
        self.training.restore(end.state)
        self.moved = True
        self.position.tick, self.position.step = end.tick, end.step
        if self.snapshots is not None:
            self.snapshots.reset(end.marks)
        for name, value in end.settings.items():
            self.actuators.apply(name, value)
        for proof in self.actuators.proofs().values():
            proof.moved()


def _slow(read_s: float, played_s: float, examples: int) -> str:
    if read_s <= played_s:
        return ""
    took = f"reading {examples} examples took {read_s:.2g} s, longer than the {played_s:.2g} s of an arm's steps"
    return f"{took}; give fewer examples or raise rules.trial_steps"
