"""Scores of outcomes: what a window showed of a decision, and what that does to reputations and trust."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.mesh.actuator_values import rounded
from oven_core.mesh.effect import Effect, mean
from oven_core.mesh.forecast import Forecast
from oven_core.mesh.reputation import beaten, earned, failed, merit, moved, success
from oven_core.mesh.state import State
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import Decision, Outcome, OutcomeLine

PATIENCE = 5


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
    def patience(self) -> int:
        return PATIENCE * self.forecast.horizon


class Scoring:
    """Scores outcomes. Moves `state.reputations`, and what was earned of `state.trust`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def scored(
        self, window: Window, after: tuple[float, ...], seen: Effect | None, reason: str, y: float = 0.0
    ) -> Outcome:
        """`seen` is None where the target was not finite before or after: no figures then, and a success of `y`."""
        lines = self._judged(window, seen, y)
        beat = beaten(seen.gain, seen.noise) if seen else y
        if window.decision.actuator == ROLLBACK and (failed(seen.gain, seen.noise) if seen else y == 0):
            self._state.rollback_limits.harmed(window.decision.id)
        forecast = window.forecast.expected * window.forecast.sign
        return self._outcome(window, after, reason).model_copy(
            update={
                "scored": True,
                "after": rounded(seen.after) if seen else None,
                "gain": rounded(seen.gain) if seen else None,
                "noise": rounded(seen.noise) if seen else None,
                "forecast": rounded(forecast) if forecast else None,
                "beat": rounded(beat),
                "lines": lines,
            }
        )

    def _judged(self, window: Window, seen: Effect | None, without: float) -> tuple[OutcomeLine, ...]:
        """One line a voter; the reputations of all move."""
        state, stakes = self._state, window.forecast.stakes
        y = {s.agent: success(seen.gain, seen.noise, s.expected) if seen else without for s in stakes}
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
            scored=False,
            reason=reason,
            from_tick=window.from_tick,
            tick=self._state.tick,
            before=rounded(mean(window.before)) if window.before else None,
            samples=(len(window.before), len(after)),
        )
