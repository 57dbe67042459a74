"""Measure the outcome of each decision on its target, the metric that judges it, in a window of ticks after the change.

`Mesh` passes the observations and receipts of a run to `Outcomes`, and publishes the outcomes that it returns. Each
outcome changes the reputations of the decision's voters.

A window opens with the receipt of an applied decision. It compares measurements from before and after the change. Let H
be the horizon of the forecast, in ticks. The earlier measurements are from the last H ticks, but not from before
another change with the same target. The later ones are from the second half of the next H ticks, because a change needs
time to show. For rarely measured metrics, both periods extend to `MAX_HORIZONS` · H ticks.

The comparison assumes that without the change, the metric would have stayed where it was. This is wrong for a rollback:
the run trains the same steps again, and its loss would fall again without any remedy. So a rollback, and any change
applied together with it, is judged on repeated steps. Measurements from the last H discarded steps are compared with
those from the second time that the run trains these steps. The noise of one measurement is the spread over all H ticks
before the rollback. A rollback that discards too few measurements is judged for clear harm only.

A window closes early at a rollback, at the end of the run, or when another change has the same target or actuator. It
also closes when a change moves its own metric (`ActuatorSpec.moves_own_metric`), unless the target is held out. But the
effects of changes at the same tick cannot be separated, so the same measurements judge all of them. A window that
closes before half its time is void, unless the target is already worse by two standard errors. Without this exception,
an agent could hide harm behind its next change, or behind the rollback that repairs it.

If the target is no longer finite, the success is 0 and the outcome has no figures. If the target becomes finite again,
the success is 1. Clear harm has a separate outcome, which charges more agents (oven_core.mesh.harm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oven_core.mesh.actuator_values import number, rounded
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.certain_harm import describe_certain_harm
from oven_core.mesh.forecast import Forecast, directed_metrics, judging_metric
from oven_core.mesh.harm import Change, Charge, HarmWatch, Scope
from oven_core.mesh.measurements import Measurements, has_diverged, mean, measure_effect, sound_values
from oven_core.mesh.outcome_scoring import Scoring, Window
from oven_core.mesh.reputation import Stance, effective_reputation, is_clearly_worse
from oven_core.mesh.state import State, main_held_out_metric, training_objective
from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.messages import (
    ActuatorSpec,
    Decision,
    MetricSpec,
    Observation,
    Outcome,
    OutcomeLine,
    Receipt,
    TallyLine,
)

_ALL_METRICS = ""
"""Placeholder for all metrics in the record of changes. A rollback, for example, affects every metric."""


@dataclass(frozen=True, slots=True)
class _NewestRollback:
    """The newest rollback to an earlier step, at `tick`."""

    tick: int
    left_step: float
    restored_step: float


class Outcomes:
    """The open windows of one run. Their outcomes change reputations, earned trust and rollback limits in the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._scoring = Scoring(state)
        self._measurements = Measurements()
        self._harm = HarmWatch(state.rules.outcome_samples)
        self._awaiting_receipt: dict[str, tuple[Decision, Forecast]] = {}  # by decision id
        self._windows: dict[str, Window] = {}  # open windows, by decision id
        self._rollback: _NewestRollback | None = None
        self._step = 0  # step of the newest observation
        self._certain_harm: str | None = None  # None until it is computed for the newest measurements
        self._change_ticks: dict[str, tuple[int, int]] = {}  # metric or _ALL_METRICS → ticks of the newest two changes

    def start(self, metrics: tuple[MetricSpec, ...]) -> list[Outcome]:
        """Start a new incarnation of the learner. Close all windows and forget the measurements of the old process."""
        closed_outcomes = self.end("the learner restarted")
        self._measurements, self._change_ticks, self._rollback = Measurements(directed_metrics(metrics)), {}, None
        self._harm, self._certain_harm = HarmWatch(self._state.rules.outcome_samples), None
        return closed_outcomes

    def end(self, reason: str) -> list[Outcome]:
        """Close all windows, because nothing more will be measured. Those past half of their time are scored."""
        return [self._close(window, reason) for window in list(self._windows.values())]

    def attach_forecast(self, decision: Decision, forecast: Forecast | None) -> Decision:
        """Return the decision with the fields of its forecast. An approval inherits the forecast of its advice."""
        _, advice_forecast = self._awaiting_receipt.pop(decision.approves, (None, None))
        forecast = forecast or advice_forecast
        if forecast is None or decision.verdict == "rejected":
            return decision
        criteria = {"target": forecast.target, "expected_change": forecast.expected_change, "horizon": forecast.horizon}
        decision = decision.model_copy(update=criteria)
        self._awaiting_receipt[decision.id] = decision, forecast
        return decision

    def observe(self, observation: Observation) -> list[Outcome]:
        """Store the measurements, and return the outcomes of the windows that are due."""
        tick = self._state.tick
        if observation.tick < tick:
            return []
        self._step = observation.step
        self._measurements.add(tick, observation.step, observation.metrics)
        self._certain_harm = None
        for decision, _ in list(self._awaiting_receipt.values()):
            if tick > self._expiry_tick(decision):
                del self._awaiting_receipt[decision.id]
        return [self._close(window) for window in list(self._windows.values()) if self._is_due(window)]

    def apply_receipt(self, receipt: Receipt) -> list[Outcome]:
        """Close the windows that an applied change disturbs, and open a window for the change."""
        decision, forecast = self._awaiting_receipt.pop(receipt.decision_id, (None, None))
        spec = self._state.spec(receipt.actuator)
        if receipt.status != "applied" or not spec.has_outcome or self._state.ended:
            return []
        tick = min(receipt.tick, self._state.tick)
        if decision is not None and forecast is not None:
            stakes = [stake for stake in forecast.stakes if stake.has_weight and stake.stance != "against"]
            agents = {stake.agent: stake.stance for stake in stakes if not spec.moves_weights}
            has_rollback = any(self._state.spec(name).moves_weights for name in decision.plan)
            scope: Scope = "own" if has_rollback else "held_out" if spec.moves_own_metric else "all"
            self._watch_harm(Change(decision.id, forecast.target, agents, tick, forecast.horizon, scope))
        if spec.moves_own_metric:
            self._harm.measure_anew(tick)
        if receipt.actuator == ROLLBACK:
            self._record_rollback(receipt, tick)
        changed_metrics = {_ALL_METRICS} if spec.moves_weights else self._disturbed_metrics(spec)
        if decision is not None and forecast is not None:
            changed_metrics.add(forecast.target)
            closed_outcomes = self._open_window(decision, forecast, tick)
        else:
            closed_outcomes = self._close_disturbed(receipt.actuator, "", receipt.decision_id, tick, in_plan=False)
        for metric in changed_metrics | {outcome.target for outcome in closed_outcomes}:
            self._add_change_tick(metric, tick)
        return closed_outcomes

    def _record_rollback(self, receipt: Receipt, tick: int) -> None:
        """Record the rollback if its receipt states that the run went back to an earlier step."""
        left_step, restored_step = number(receipt.before), number(receipt.after)
        self._rollback = None
        if left_step is not None and restored_step is not None and restored_step < left_step:
            self._rollback = _NewestRollback(tick, left_step, restored_step)
            self._harm.add_rollback(self._measurements, restored_step, tick)

    def add_veto(self, ballot: Ballot, lines: Sequence[TallyLine]) -> None:
        """Record a vetoed ballot. Agents that voted against it with weight supported the unchanged state."""
        opponents: dict[str, Stance] = {
            line.agent: "against" for line in lines if line.stance == "against" and line.weight > 0
        }
        opening = ballot.votes.get(ballot.opened.opened_by)
        metric = judging_metric(self._state, ballot.opened.actuator, opening.vote.target if opening else "")
        if metric is not None:
            horizon = self._state.rules.outcome_ticks
            self._watch_harm(Change("", metric.name, opponents, self._state.tick, horizon, "own"))

    def _watch_harm(self, change: Change) -> None:
        """Watch the metric that judges a change, the main held-out metric and, if the change answers for it, the reward
        or the loss."""
        if not self._state.rules.harm_charge:
            return
        metrics = self._state.metrics
        watched = [main_held_out_metric(metrics)]
        if change.scope == "all":
            watched.append(training_objective(metrics))
        names = dict.fromkeys([change.target, *(metric.name for metric in watched if metric)])
        directed = directed_metrics(metrics)
        self._harm.add_change(self._measurements, change, [directed[name] for name in names if name in directed])

    def harm_outcomes(self, next_id: Callable[[], str]) -> list[Outcome]:
        """Return an outcome with an id from `next_id` for each clear harm that is visible at this tick."""
        if self._state.ended or not self._state.rules.harm_charge:
            return []
        outcomes: list[Outcome] = []
        for charge in self._harm.collect_charges(self._measurements, self._state.tick):
            outcomes.append(self._charge(next_id(), charge))
            outcomes += [
                self._close_as_failure(self._windows[decision_id], charge.target)
                for decision_id in charge.failed_decisions
                if decision_id in self._windows
            ]
        return outcomes

    def _close_as_failure(self, window: Window, harmed_metric: str) -> Outcome:
        """Score the change of the window as a failure, because it is charged with clear harm to another metric."""
        del self._windows[window.decision.id]
        reason = f"clear harm to {harmed_metric}, so a gain of {window.target} does not count"
        return self._scoring.scored_outcome(window, sound_values(self._measurements_after(window)), None, reason)

    def harm_beyond_doubt(self) -> str:
        """Describe harm for which one proposal is enough, or return an empty string if there is none.

        The result is stored until the next observation, because each vote may ask for it."""
        if self._certain_harm is None:
            state = self._state
            self._certain_harm = describe_certain_harm(self._measurements, state.tick, state.rules.outcome_ticks)
        return self._certain_harm

    def _charge(self, outcome_id: str, charge: Charge) -> Outcome:
        """Reduce the reputations of the charged agents, and return the outcome."""
        state, before = self._state, self._state.reputations
        after = dict(before)
        for agent, blame in charge.agents.items():
            lost_share = state.rules.harm_charge * blame.share
            after[agent] = rounded(effective_reputation(before.get(agent, 1.0)) * (1 - lost_share))
            state.trust.revoke_earned(agent)
            if blame.share == 1:
                state.trust.add_full_charge(agent)
        state.reputations = after
        effect = None if charge.not_finite else measure_effect(charge.before, charge.after, charge.sign, charge.before)
        figures = f"{effect.before:.4g} → {effect.after:.4g}" if effect else "is no longer finite"
        agents = ", ".join(sorted(charge.agents))
        return Outcome(
            decision_id=outcome_id,
            actuator="",
            target=charge.target,
            scored=True,
            charge=True,
            reason=f"clear harm since tick {charge.start_tick}: {charge.target} {figures}; charged to {agents}",
            from_tick=charge.start_tick,
            tick=state.tick,
            before=rounded(mean(charge.before)) if charge.before else None,
            after=rounded(effect.after) if effect else None,
            samples=(len(charge.before), len(charge.after)),
            gain=rounded(effect.gain) if effect else None,
            noise=rounded(effect.noise) if effect else None,
            lines=tuple(
                OutcomeLine(
                    agent=agent,
                    stance=blame.stance,
                    confidence=1.0,
                    success=0.0,
                    merit=-blame.share,
                    before=rounded(effective_reputation(before.get(agent, 1.0))),
                    after=after[agent],
                )
                for agent, blame in sorted(charge.agents.items())
            ),
        )

    def _open_window(self, decision: Decision, forecast: Forecast, tick: int) -> list[Outcome]:
        """Open a window for the change, and return the outcomes of the windows that it closes."""
        closed_outcomes = self._close_disturbed(decision.actuator, forecast.target, decision.id, tick, in_plan=True)
        self._windows[decision.id] = Window(decision, forecast, tick)
        for decision_id, window in self._windows.items():
            if window.from_tick == tick:  # this window and those of the same plan, whose rollback may come last
                self._windows[decision_id] = self._with_earlier_measurements(window)
        return closed_outcomes

    def _with_earlier_measurements(self, window: Window) -> Window:
        """Return the window with the measurements from before the change."""
        tick, name, horizon_start = window.from_tick, window.target, window.from_tick - window.forecast.horizon
        rollback = self._rollback if self._rollback is not None and self._rollback.tick == tick else None
        min_samples = self._state.rules.outcome_samples
        since = self._last_change(_ALL_METRICS, tick)
        spec = self._state.spec(window.decision.actuator)
        if not spec.moves_weights:  # a rollback undoes earlier changes, so measurements after them count
            since = max(since, self._last_change(name, tick))
        repeated: tuple[float, float] | None = None
        discarded_too_few = False
        if rollback is None:
            values = self._measurements.at_ticks(name, max(since, horizon_start), tick)
            before = baseline = sound_values(values)
        else:
            repeated = max(rollback.restored_step, rollback.left_step - window.forecast.horizon), rollback.left_step
            values = self._measurements.at_steps(name, *repeated, since=since, until_tick=tick)
            before = sound_values(values)
            baseline = sound_values(self._measurements.at_ticks(name, horizon_start, tick))
            discarded_too_few = len(before) < min_samples
        required_before = 1 if discarded_too_few else min_samples
        if len(before) < required_before:  # look further back for a rarely measured metric
            values = self._measurements.at_ticks(name, max(since, tick - window.max_ticks), tick)
            before = sound_values(values)[-min_samples:]
            baseline = (baseline or before) if discarded_too_few else before
        was_unsound = has_diverged(values)
        return replace(
            window,
            before=before,
            baseline=baseline,
            was_unsound=was_unsound,
            discarded_too_few=discarded_too_few,
            repeated_steps=None if discarded_too_few or was_unsound else repeated,
        )

    def _close_disturbed(
        self, actuator: str, target: str, decision_id: str, tick: int, *, in_plan: bool
    ) -> list[Outcome]:
        """Close the windows that a change of `actuator`, judged by `target`, disturbs.

        With `in_plan`, windows of other actuators that opened at the same tick stay open, as parts of the same plan."""
        targets = {target} | self._disturbed_metrics(self._state.spec(actuator))
        windows = [
            window
            for window in self._windows.values()
            if (window.target in targets or window.decision.actuator == actuator)
            and (not in_plan or window.from_tick != tick or window.decision.actuator == actuator)
        ]
        return [self._close(window, f"confounded by {actuator} (decision {decision_id})") for window in windows]

    def _disturbed_metrics(self, spec: ActuatorSpec) -> set[str]:
        """Return the metrics whose values before and after a change of this actuator cannot be compared: all if it
        moves the weights, and those that are not held out if it moves its own metric."""
        if not (spec.moves_weights or spec.moves_own_metric):
            return set()
        return {metric.name for metric in self._state.metrics if spec.moves_weights or not metric.held_out}

    def _is_due(self, window: Window) -> bool:
        """Return whether the window's time is over and enough was measured, or the target diverged."""
        elapsed = self._state.tick - window.from_tick
        if window.repeated_steps is not None:
            if self._step < window.repeated_steps[1] and elapsed < window.max_ticks:
                return False
        elif elapsed < window.forecast.horizon:
            return False
        after = self._measurements_after(window)
        has_enough = len(sound_values(after)) >= self._state.rules.outcome_samples
        return has_enough or has_diverged(after) or elapsed >= window.max_ticks

    def _measurements_after(self, window: Window) -> list[float]:
        """Return the measurements in the second half of the window, or all if less than half the horizon has passed.

        After a rollback, return the measurements of the repeated steps."""
        start, now = window.from_tick, self._state.tick
        if window.repeated_steps is not None:
            return self._measurements.at_steps(window.target, *window.repeated_steps, since=start, until_tick=now)
        elapsed, horizon = now - start, window.forecast.horizon
        settling_ticks = min(elapsed, horizon) // 2 if 2 * elapsed >= horizon else 0
        return self._measurements.at_ticks(window.target, start + settling_ticks, now)

    def _close(self, window: Window, interruption: str = "") -> Outcome:
        """Remove the window and return its outcome. If it closes early, `interruption` is the reason."""
        del self._windows[window.decision.id]
        values, min_samples = self._measurements_after(window), self._state.rules.outcome_samples
        after = sound_values(values)
        is_early = self._is_early(window)
        suffix = f"; {interruption}" if interruption else ""
        if window.was_unsound and len(after) >= min_samples and not has_diverged(values) and not is_early:
            reason = f"{window.target} is finite again{suffix}"
            return self._scoring.scored_outcome(window, after, None, reason, fixed_success=1.0)
        required_before = 1 if window.discarded_too_few else min_samples
        if len(window.before) < required_before:
            reason = f"only {len(window.before)} measurements of {window.target} before it, {min_samples} required"
            return self._scoring.unscored_outcome(window, after, reason + suffix)
        if has_diverged(values):
            not_finite = f"{window.target} is no longer finite"
            if is_early and window.was_unsound:
                return self._scoring.unscored_outcome(window, after, not_finite + suffix)
            return self._scoring.scored_outcome(window, after, None, not_finite + suffix)
        if len(after) < min_samples:
            reason = f"only {len(after)} measurements of {window.target} after it, {min_samples} required"
            return self._scoring.unscored_outcome(window, after, reason + suffix)
        effect = measure_effect(window.before, after, window.forecast.sign, window.baseline)
        if (is_early or window.discarded_too_few) and not is_clearly_worse(effect.gain, effect.noise):
            if is_early:
                reason = f"{interruption} before half of its {window.forecast.horizon} ticks"
            else:
                reason = f"it discarded fewer than {min_samples} measurements of {window.target}{suffix}"
            return self._scoring.unscored_outcome(window, after, reason)
        figures = f"{window.target} {effect.before:.4g} → {effect.after:.4g}"
        reason = f"{figures}, a gain of {effect.gain:.3g} ± {effect.noise:.2g}{suffix}"
        return self._scoring.scored_outcome(window, after, effect, reason)

    def _is_early(self, window: Window) -> bool:
        """Return whether less than half of the horizon has passed, or less than half of the steps were repeated."""
        if window.repeated_steps is not None:
            return 2 * self._step < sum(window.repeated_steps)
        return 2 * (self._state.tick - window.from_tick) < window.forecast.horizon

    def _expiry_tick(self, decision: Decision) -> int:
        """Return the last tick at which a receipt for the decision, or for its approval, may still arrive."""
        rules = self._state.rules
        return max(decision.expires_at_tick, decision.tick + rules.approve_ticks) + rules.outcome_ticks

    def _add_change_tick(self, metric: str, tick: int) -> None:
        """Record a change that affects this metric."""
        newest, previous = self._change_ticks.get(metric, (-1, -1))
        if tick > newest:
            self._change_ticks[metric] = tick, newest
        elif previous < tick < newest:
            self._change_ticks[metric] = newest, tick

    def _last_change(self, metric: str, before: int) -> int:
        """Return the tick of the newest change before tick `before`, or −1 if there is none.

        Changes at the same tick, such as a rollback and a rate cut, count as one."""
        return max((tick for tick in self._change_ticks.get(metric, ()) if tick < before), default=-1)
