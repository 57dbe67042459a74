"""Trials of a run: a pure fold over its log, and what each of them showed in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from oven_core.mesh.actuator_values import show
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import LogMessage, RunStarted
from oven_core.protocol.trial_messages import BranchObservation, TrialArm, TrialEnded, TrialStarted

KEPT = 64
"""Trials that are remembered; the oldest are let go."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial as far as the log tells it."""

    started: TrialStarted
    sign: int
    """-1 where a lower reading is better, so that sign × gain is the reading's own change."""
    ended: TrialEnded | None = None
    lost: bool = False
    """The learner started again, so no answer will come."""
    arm: int = 0
    """Index of the arm whose steps came last."""
    played: int = 0
    """Steps of that arm."""

    @property
    def refused(self) -> bool:
        """Whether the learner played none of it."""
        return self.ended is not None and self.ended.status == "refused"

    @property
    def progress(self) -> str:
        """Which arm is being played, and how far, as in "trial: arm 1 of 1, step 5 of 8"."""
        who = f"arm {self.arm} of {len(self.started.arms) - 1}" if self.arm else "control"
        return f"trial: {who}, step {self.played} of {max(self.played, self.started.steps)}"

    def measured(self, arm: int) -> bool:
        """Whether this arm was tried, as far as the trial came: the mesh adopts without what could not be."""
        if self.ended is None or self.ended.status != "completed":
            return not self.refused
        return arm < len(self.ended.arms) and self.ended.arms[arm].gain is not None

    def kept(self, arm: int) -> bool:
        """Whether the run continued with this arm."""
        return self.ended is not None and self.ended.status == "completed" and self.ended.kept == arm

    def difference(self, arm: int) -> str:
        """How far the reading of an arm is from the control's, as in "-0.12 ± 0.02"; empty where it was not compared.
        In the reading's own direction: below 0 it fell."""
        readings = self.ended.arms if self.ended is not None else ()
        if arm >= len(readings) or readings[arm].gain is None:
            return ""
        return _signed(self.sign * (readings[arm].gain or 0.0), readings[arm].noise or 0.0)

    def finding(self, arm: int) -> str:
        """The outcome of an arm, in a sentence."""
        if self.ended is None:
            return "no result: the learner started again during the trial" if self.lost else self.progress
        if self.ended.status != "completed":
            verdict = "not tried" if self.refused else "not kept: the trial was interrupted"
            return f"{verdict}: {self.ended.reason}"
        verdict = "kept" if self.kept(arm) else "not kept"
        if not (difference := self.difference(arm)):
            why = self.ended.arms[arm].reason if arm < len(self.ended.arms) else ""
            return f"{verdict}: {why or 'it was not read'}"
        better = self.ended.kept if verdict == "not kept" else 0
        instead = f"; arm {better} is better" if better else ""
        unused = f"; {self.ended.arms[arm].reason}" if self.ended.arms[arm].reason else ""
        return f"{verdict}: {difference} {self.started.reading} for {self.ended.extra} extra steps{instead}{unused}"

    def terms(self) -> str:
        """How long each arm is played, and what a change needs to be kept."""
        started = self.started
        cooldown = f", then {started.cooldown} of a copy while its rate falls to 0" if started.cooldown else ""
        margin = f"a change needs {started.margin:.3g} standard errors to be kept"
        return f"{started.steps} steps of each arm{cooldown}; {margin}"

    def cost(self) -> str:
        """Steps and seconds spent; empty before the end."""
        ended = self.ended
        if ended is None:
            return ""
        return f"{ended.steps} steps computed, {ended.extra} of them thrown away, in {ended.seconds:.3g} s"


@dataclass
class Trials:
    """Feed it the log's messages in order."""

    by_id: dict[str, Trial] = field(default_factory=dict)
    under_way: str = ""
    """Id of the trial that waits for its end; empty while none does."""
    completed: int = 0
    interrupted: int = 0
    refused: int = 0
    kept: int = 0
    """Trials after which the run continued with a change."""
    extra: int = 0
    """Gradient steps that trials have thrown away."""
    _fall_is_better: frozenset[str] = frozenset()

    def feed(self, body: LogMessage | Malformed) -> Trial | None:
        """The trial that this message was about; None where it was about none."""
        match body:
            case RunStarted():
                self._fall_is_better = frozenset(spec.name for spec in body.metrics if spec.better == "down")
                trial, self.under_way = self.open, ""
                if trial is not None:
                    self.by_id[trial.started.id] = replace(trial, lost=True)
                    return self.by_id[trial.started.id]
            case TrialStarted() if body.id not in self.by_id:
                trial = Trial(body, -1 if body.reading in self._fall_is_better else 1)
                self.by_id[body.id], self.under_way = trial, body.id
                if len(self.by_id) > KEPT:
                    del self.by_id[next(iter(self.by_id))]
                return trial
            case BranchObservation() if body.trial == self.under_way and (trial := self.open) is not None:
                played = trial.played + 1 if body.arm == trial.arm else 1
                self.by_id[body.trial] = replace(trial, arm=body.arm, played=played)
                return self.by_id[body.trial]
            case TrialEnded() if (trial := self.by_id.get(body.trial)) is not None and trial.ended is None:
                return self._end(trial, body)
            case _:
                pass
        return None

    def _end(self, trial: Trial, ended: TrialEnded) -> Trial:
        self.by_id[ended.trial] = trial = replace(trial, ended=ended)
        self.under_way = "" if self.under_way == ended.trial else self.under_way
        self.completed += ended.status == "completed"
        self.interrupted += ended.status == "interrupted"
        self.refused += ended.status == "refused"
        self.kept += ended.status == "completed" and ended.kept > 0
        self.extra += ended.extra
        return trial

    @property
    def open(self) -> Trial | None:
        """The trial that is under way, if one is."""
        return self.by_id.get(self.under_way)

    def of(self, decision_id: str) -> tuple[Trial, int] | None:
        """The trial that measured a decision, and the arm that it was in; None where none of the newest did."""
        for trial in reversed(self.by_id.values()):
            for index, arm in enumerate(trial.started.arms):
                if decision_id in arm.decisions:
                    return trial, index
        return None

    def counts(self, ticks: int) -> str:
        """As in "2 trials, 1 kept, 22 steps thrown away of 262"; empty where there was none. `ticks`: of the run."""
        made = self.completed + self.interrupted
        if not made + self.refused:
            return ""
        parts = [f"{made} trial{'' if made == 1 else 's'}", f"{self.kept} kept"]
        parts += [f"{self.interrupted} interrupted"] if self.interrupted else []
        parts += [f"{self.refused} refused"] if self.refused else []
        return ", ".join([*parts, f"{self.extra} steps thrown away of {ticks + self.extra}"])

    def copy(self) -> Trials:
        """One that stays as it is while this one continues."""
        return replace(self, by_id=dict(self.by_id))


def changes(arm: TrialArm) -> str:
    """What an arm changes, in words."""
    return ", ".join(f"{name} {show(value)}".rstrip() for name, value in arm.changes.items()) or "control"


def _signed(change: float, noise: float) -> str:
    """A difference with its standard error, to two digits of that."""
    if not (math.isfinite(change) and math.isfinite(noise)) or noise <= 0:
        return f"{change:+.3g} ± {noise:.2g}"
    digits = 1 - math.floor(math.log10(noise))
    return f"{change:+.{digits}f} ± {noise:.{digits}f}" if 0 <= digits <= 5 else f"{change:+.3g} ± {noise:.2g}"
