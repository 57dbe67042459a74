"""Scores of outcomes: what a window or a trial showed of a decision, and what that does to reputations and trust."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from oven_core.mesh.actuator_values import direction, rounded
from oven_core.mesh.effect import Effect, combined, mean
from oven_core.mesh.forecast import Forecast
from oven_core.mesh.reputation import Baseline, beaten, earned, failed, merit, moved, success
from oven_core.mesh.state import State
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import Decision, Outcome, OutcomeLine
from oven_core.protocol.trial_messages import TrialEnded, TrialStarted

PATIENCE = 5
CONTROLS = 32
"""Withheld decisions of one actuator, direction and metric that the next are held against: the newest."""
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Window:
    """`before` are the sound measurements; `spoiled`: the newest of all before the change was none. `usual`: those that
    the spread of one is taken from. `scant`: what was thrown away is too little to tell a gain by. `again`: the steps
    of a rollback that are compared with themselves, (after, until]."""

    decision: Decision
    forecast: Forecast
    from_tick: int
    before: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    spoiled: bool = False
    scant: bool = False
    again: tuple[float, float] | None = None

    @property
    def target(self) -> str:
        return self.forecast.target

    @property
    def withheld(self) -> bool:
        return self.decision.verdict == "withheld"

    @property
    def key(self) -> _Key:
        """What a control has to share with a decision that is held against it."""
        return self.decision.actuator, direction(self.decision.before, self.decision.value), self.target

    @property
    def patience(self) -> int:
        return PATIENCE * self.forecast.horizon


class Scoring:
    """What one run's outcomes are held against: the withheld decisions of the same change. Moves `state.reputations`,
    and what was earned of `state.trust`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._controls: dict[_Key, deque[tuple[float, float]]] = {}  # gain and noise

    def baseline(self, window: Window) -> Baseline | None:
        controls = self._controls.get(window.key)
        if window.withheld or not controls:
            return None
        noise = combined(*(noise for _, noise in controls)) / len(controls)
        return Baseline(mean([gain for gain, _ in controls]), noise)

    def scored(
        self, window: Window, after: tuple[float, ...], seen: Effect | None, reason: str, y: float = 0.0
    ) -> Outcome:
        """`seen` is None where the target was not finite before or after: no figures then, and a success of `y`."""
        control = self.baseline(window)
        lines: tuple[OutcomeLine, ...] = ()
        if not window.withheld:
            lines = self._judged(window, seen, control, y)
        elif seen is not None:
            self._controls.setdefault(window.key, deque(maxlen=CONTROLS)).append((seen.gain, seen.noise))
        beat = beaten(seen.gain, seen.noise, control) if seen else y
        if window.decision.actuator == ROLLBACK and (failed(seen.gain, seen.noise, control) if seen else y == 0):
            self._state.rollback_limits.harmed(window.decision.id)
        forecast = window.forecast.expected * window.forecast.sign
        return self._outcome(window, after, reason).model_copy(
            update={
                "scored": True,
                "after": rounded(seen.after) if seen else None,
                "gain": rounded(seen.gain) if seen else None,
                "noise": rounded(seen.noise) if seen else None,
                "forecast": rounded(forecast) if forecast else None,
                "control": rounded(control.gain) if control else None,
                "beat": None if window.withheld else rounded(beat),
                "lines": lines,
            }
        )

    def _judged(
        self, window: Window, seen: Effect | None, control: Baseline | None, without: float
    ) -> tuple[OutcomeLine, ...]:
        """One line a voter; the reputations of all move."""
        state, stakes = self._state, window.forecast.stakes
        y = {s.agent: success(seen.gain, seen.noise, s.expected, control) if seen else without for s in stakes}
        merits = {s.agent: merit(s.stance, s.confidence, y[s.agent]) for s in stakes}
        before = state.reputations
        state.reputations = moved(before, state.agents, merits, state.rules)
        for s in stakes:
            if s.opened and not s.shadow and s.stance == "propose" and merits[s.agent] > 0:
                state.trust.earn(s.agent, window.decision.actuator)
        return tuple(
            OutcomeLine(
                agent=s.agent,
                stance=s.stance,
                shadow=s.shadow,
                confidence=s.confidence,
                success=rounded(y[s.agent]),
                merit=rounded(merits[s.agent]),
                before=rounded(earned(before.get(s.agent, 1.0))),
                after=state.reputations[s.agent],
            )
            for s in sorted(stakes, key=lambda s: s.agent)
        )

    def unscored(self, window: Window, after: tuple[float, ...], reason: str) -> Outcome:
        return self._outcome(window, after, reason)

    def _outcome(self, window: Window, after: tuple[float, ...], reason: str) -> Outcome:
        return Outcome(
            decision_id=window.decision.id,
            actuator=window.decision.actuator,
            target=window.target,
            withheld=window.withheld,
            scored=False,
            reason=reason,
            from_tick=window.from_tick,
            tick=self._state.tick,
            before=rounded(mean(window.before)) if window.before else None,
            samples=(len(window.before), len(after)),
        )

    def measured(
        self, trial: TrialStarted, ended: TrialEnded, tried: Mapping[str, tuple[Decision, Forecast]]
    ) -> list[Outcome]:
        """What a trial showed of each decision that it tried: an effect that nothing else confounds. It says nothing of
        an arm that was not played to its end."""
        if ended.status != "completed" or not ended.arms:
            return []
        control, found = ended.arms[0], list[Outcome]()
        for index, (arm, reading) in enumerate(zip(trial.arms, ended.arms, strict=False)):
            for decision, forecast in (tried[id] for id in arm.decisions if id in tried):
                stakes = tuple(replace(stake, expected=0.0) for stake in forecast.stakes)  # it promised another horizon
                window = Window(
                    decision, replace(forecast, target=trial.reading, stakes=stakes, expected=0.0), ended.tick
                )
                if reading.gain is None or reading.mean is None or control.mean is None:
                    found.append(self.unscored(window, (), reading.reason or "the trial has no reading of it"))
                    continue
                seen = Effect(control.mean, reading.mean, reading.gain, reading.noise or 0.0)
                kept = "kept" if index == ended.kept else "not kept"
                told = f"a trial of {trial.steps} steps measured a gain of {seen.gain:.3g} ± {seen.noise:.2g}: {kept}"
                scored = self.scored(window, (), seen, told)
                samples = (control.examples, reading.examples)
                found.append(scored.model_copy(update={"measured": True, "before": seen.before, "samples": samples}))
        return found
