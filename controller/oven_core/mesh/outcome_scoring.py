"""Score the voters of a decision by its measured outcome, and update their reputations and trust."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.mesh.actuator_values import rounded
from oven_core.mesh.forecast import Forecast
from oven_core.mesh.measurements import Effect, mean
from oven_core.mesh.reputation import (
    beat_probability,
    effective_reputation,
    is_clearly_worse,
    merit,
    success,
    updated_reputations,
)
from oven_core.mesh.state import State
from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.messages import Decision, Outcome, OutcomeLine

MAX_HORIZONS = 5
"""Maximum number of horizons, before and after a change, in which measurements of a rarely measured target count."""


@dataclass(frozen=True, slots=True)
class Window:
    """The period after a change in which its target is watched, with the measurements from before the change."""

    decision: Decision
    forecast: Forecast
    from_tick: int
    before: tuple[float, ...] = ()
    """The usable measurements before the change."""
    baseline: tuple[float, ...] = ()
    """The measurements from which the spread of a single measurement is estimated."""
    was_unsound: bool = False
    """Whether the newest measurement before the change was unusable."""
    discarded_too_few: bool = False
    """Whether a rollback discarded too few measurements to show a gain. Then only clear harm counts."""
    repeated_steps: tuple[float, float] | None = None
    """The steps that are repeated after a rollback: those after the first number, up to and including the second."""

    @property
    def target(self) -> str:
        return self.forecast.target

    @property
    def max_ticks(self) -> int:
        """Number of ticks until the window closes even if too little was measured."""
        return MAX_HORIZONS * self.forecast.horizon


class Scoring:
    """Scores closed windows, and updates `state.reputations` and the earned trust in `state.trust`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def scored_outcome(
        self, window: Window, after: tuple[float, ...], effect: Effect | None, reason: str, fixed_success: float = 0.0
    ) -> Outcome:
        """Return the outcome of a window with a result, and update reputations.

        `effect` is None if the target was not finite before or after. The outcome then has no figures, and its success
        is `fixed_success`."""
        lines = self._score_voters(window, effect, fixed_success)
        beat = beat_probability(effect.gain, effect.noise) if effect else fixed_success
        is_harm = is_clearly_worse(effect.gain, effect.noise) if effect else fixed_success == 0
        if is_harm and window.decision.actuator == ROLLBACK:
            self._state.rollback_limits.record_harm(window.decision.id)
        forecast_gain = window.forecast.expected_change * window.forecast.sign
        return self.unscored_outcome(window, after, reason).model_copy(
            update={
                "scored": True,
                "after": rounded(effect.after) if effect else None,
                "gain": rounded(effect.gain) if effect else None,
                "noise": rounded(effect.noise) if effect else None,
                "forecast": rounded(forecast_gain) if forecast_gain else None,
                "beat": rounded(beat),
                "lines": lines,
            }
        )

    def unscored_outcome(self, window: Window, after: tuple[float, ...], reason: str) -> Outcome:
        """Return the outcome of a window without a result, for this reason."""
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

    def _score_voters(self, window: Window, effect: Effect | None, fixed_success: float) -> tuple[OutcomeLine, ...]:
        """Score each voter, update all reputations and the opener's trust, and return one line per voter.

        A vote without weight restores a reputation up to 1 and never raises it further. Otherwise an agent that repeats
        what trusted agents propose would gain influence. A newcomer earns trust only by a change that it led and that a
        person approved."""
        state, stakes = self._state, window.forecast.stakes
        successes = {
            stake.agent: success(effect.gain, effect.noise, stake.forecast_size) if effect else fixed_success
            for stake in stakes
        }
        merits = {stake.agent: merit(stake.stance, stake.confidence, successes[stake.agent]) for stake in stakes}
        before = state.reputations
        state.reputations = updated_reputations(before, state.agents, merits, state.rules)
        for stake in stakes:
            agent = stake.agent
            if not stake.has_weight:
                highest = max(1.0, effective_reputation(before.get(agent, 1.0)))
                state.reputations[agent] = min(state.reputations[agent], highest)
            is_carried = stake.has_weight or bool(window.decision.approves)
            if stake.led_ballot and is_carried and not stake.shadow and merits[agent] > 0:
                state.trust.add_good_outcome(agent, window.decision.actuator)
        return tuple(
            OutcomeLine(
                agent=stake.agent,
                stance=stake.stance,
                shadow=stake.shadow,
                confidence=stake.confidence,
                success=rounded(successes[stake.agent]),
                merit=rounded(merits[stake.agent]),
                before=rounded(effective_reputation(before.get(stake.agent, 1.0))),
                after=state.reputations[stake.agent],
            )
            for stake in sorted(stakes, key=lambda stake: stake.agent)
        )
