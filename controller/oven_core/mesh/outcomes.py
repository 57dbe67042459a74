"""Outcomes: windows on the metric that judges each decision; when they close, reputations move.

A window opens with the receipt of an applied decision. Before it: the measurements of the last H ticks, H being the
forecast's horizon, but none from before the last other change that was judged by this metric. After it: those in the
second half of the next H ticks, since a change needs time to show. A metric that is measured more rarely is waited for,
and looked back on, for up to `PATIENCE` · H ticks.

What stands before is the forecast of doing nothing: things stay as they are. After a rollback they do not: the run
trains the same steps again, and a loss that falls after a restart would fall without any remedy. So a rollback, and
what is applied together with it, is judged at the same steps: the last H of those that it threw away, as they were and
as they are the second time, once the run has come as far again. The spread of one measurement is that of all H ticks
before it. Where it throws away fewer measurements than are needed, it is judged for clear harm only, by what comes
after against what it threw away.

Changes at one tick that one metric judges are a plan: no one can tell their effects apart, and all of them are judged
by the same measurements. Otherwise windows on one metric never overlap, and none outlasts another change of its
actuator or a rollback. One that is cut short before half its time says nothing, unless the metric is much worse
already: harm shows before benefit does, and who did it could otherwise have the next change, or the rollback that mends
it, hide the traces.

Beside the windows stands clear harm (oven_core.mesh.harm): it is charged to all who carried changes since the
target was well, whatever confounds them, in its own outcome.

A target that stopped being finite is a failure without figures, a success of 0; one that was not and is again is a
success of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from oven_core.mesh.actuator_values import number, rounded
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.effect import effect, mean
from oven_core.mesh.forecast import Forecast
from oven_core.mesh.harm import Charge, Harm
from oven_core.mesh.judging_metric import directed, judging_metric
from oven_core.mesh.measurements import Measurements, sound
from oven_core.mesh.outcome_scoring import Scoring, Window
from oven_core.mesh.reputation import Stance, earned, failed
from oven_core.mesh.state import State, held_out
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import (
    Decision,
    MetricSpec,
    Observation,
    Outcome,
    OutcomeLine,
    Receipt,
    TallyLine,
)


class Outcomes:
    """The open windows of one run. Moves `state.reputations` and what was earned of `state.trust`, and nothing else of
    the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._scoring = Scoring(state)
        self._measured = Measurements()
        self._harm = Harm(state.rules.outcome_samples)
        self._expected: dict[str, tuple[Decision, Forecast]] = {}  # decided, and no receipt yet
        self._open: dict[str, Window] = {}  # by decision
        self._back: tuple[int, float, float] | None = None  # the last rollback: its tick, the step left, and restored
        self._step = 0  # of the newest observation
        self._changed: dict[str, tuple[int, int]] = {}  # metric, "" for all → the newest two ticks of a change

    def start(self, metrics: tuple[MetricSpec, ...]) -> list[Outcome]:
        """A new incarnation of the learner: what was measured before it is another process's."""
        closed = self.end("the learner started again")
        self._measured, self._changed, self._back = Measurements(directed(metrics)), {}, None
        self._harm = Harm(self._state.rules.outcome_samples)
        return closed

    def end(self, reason: str) -> list[Outcome]:
        """Nothing more will be measured."""
        closed = [self._scoring.unscored(window, (), reason) for window in self._open.values()]
        self._open.clear()
        return closed

    def expect(self, decision: Decision, forecast: Forecast | None) -> Decision:
        """A decision with what it will be judged by. One that carries out an advised decision takes over what was
        staked on that."""
        _, advised = self._expected.pop(decision.of, (None, None))
        forecast = forecast or advised
        if forecast is None or decision.verdict == "rejected":
            return decision
        judged = {"target": forecast.target, "expected_change": forecast.expected, "horizon": forecast.horizon}
        decision = decision.model_copy(update=judged)
        self._expected[decision.id] = decision, forecast
        return decision

    def observe(self, observation: Observation) -> list[Outcome]:
        tick = self._state.tick
        if observation.tick < tick:
            return []
        self._step = observation.step
        self._measured.add(tick, observation.step, observation.metrics)
        for id, (decision, _) in list(self._expected.items()):
            if tick > self._lapse(decision):
                del self._expected[id]
        return [self._closed(window) for window in list(self._open.values()) if self._due(window)]

    def take(self, receipt: Receipt) -> list[Outcome]:
        """What was applied ends the windows that it disturbs, and opens its own."""
        decision, forecast = self._expected.pop(receipt.decision_id, (None, None))
        spec = self._state.spec(receipt.actuator)
        if receipt.status != "applied" or not spec.has_outcome or self._state.ended:
            return []
        tick = min(receipt.tick, self._state.tick)
        if receipt.actuator == ROLLBACK:
            left, restored = number(receipt.before), number(receipt.after)
            self._back = None
            if left is not None and restored is not None and restored < left:
                self._back = tick, left, restored
                self._harm.went_back(self._measured, restored, tick)
        if decision is not None and forecast is not None and not spec.moves_weights:
            carried = {s.agent: s.stance for s in forecast.stakes if s.carried and s.stance != "against"}
            self._answer_for(forecast, carried, tick)
        touched = {""} if spec.moves_weights else set()
        if decision is not None and forecast is not None:
            touched.add(forecast.target)
            closed = self._begin(decision, forecast, tick)
        else:
            closed = self._cut(receipt.actuator, "", receipt.decision_id, tick, alone=True)
        for metric in touched | {outcome.target for outcome in closed}:
            self._change(metric, tick)
        return closed

    def vetoed(self, ballot: Ballot, lines: Sequence[TallyLine]) -> None:
        """A ballot was vetoed: who was against it, with weight, carried that things stay as they are."""
        against: dict[str, Stance] = {
            line.agent: "against" for line in lines if line.stance == "against" and line.weight > 0
        }
        leading = ballot.casts.get(ballot.opened.opened_by)
        metric = judging_metric(self._state, ballot.opened.actuator, leading.vote.target if leading else "")
        if metric is not None:
            sign, horizon = 1 if metric.better == "up" else -1, self._state.rules.outcome_ticks
            self._answer_for(Forecast(metric.name, sign, 0.0, horizon, ()), against, self._state.tick)

    def _answer_for(self, forecast: Forecast, agents: Mapping[str, Stance], tick: int) -> None:
        """By the metric that judges it, and by the one that stands for the whole."""
        self._harm.carried(self._measured, forecast.target, forecast.sign, forecast.horizon, agents, tick)
        whole = held_out(self._state.metrics)
        if whole is not None and whole.name != forecast.target:
            sign = 1 if whole.better == "up" else -1
            self._harm.carried(self._measured, whole.name, sign, forecast.horizon, agents, tick)

    def charged(self, next_id: Callable[[], str]) -> list[Outcome]:
        """The clear harm that shows at this tick, each as its own outcome, for which `next_id` gives ids."""
        if self._state.ended or not self._state.rules.harm_charge:
            return []
        return [self._charge(next_id(), charge) for charge in self._harm.found(self._measured, self._state.tick)]

    def _charge(self, id: str, charge: Charge) -> Outcome:
        state, before = self._state, self._state.reputations
        after = dict(before)
        for agent in charge.agents:
            after[agent] = rounded(earned(before.get(agent, 1.0)) * (1 - state.rules.harm_charge))
            state.trust.forget(agent)
        state.reputations = after
        seen = None if charge.broken else effect(charge.before, charge.after, charge.sign, charge.before)
        told = f"clear harm since tick {charge.since}: "
        told += f"{charge.target} {seen.before:.4g} → {seen.after:.4g}" if seen else f"{charge.target} is not finite"
        return Outcome(
            decision_id=id,
            actuator="",
            target=charge.target,
            scored=True,
            charge=True,
            reason=f"{told}; charged to {', '.join(sorted(charge.agents))}",
            from_tick=charge.since,
            tick=state.tick,
            before=rounded(mean(charge.before)) if charge.before else None,
            after=rounded(seen.after) if seen else None,
            samples=(len(charge.before), len(charge.after)),
            gain=rounded(seen.gain) if seen else None,
            noise=rounded(seen.noise) if seen else None,
            lines=tuple(
                OutcomeLine(
                    agent=agent,
                    stance=charge.agents[agent],
                    confidence=1.0,
                    success=0.0,
                    merit=-1.0,
                    before=rounded(earned(before.get(agent, 1.0))),
                    after=after[agent],
                )
                for agent in sorted(charge.agents)
            ),
        )

    def _begin(self, decision: Decision, forecast: Forecast, tick: int) -> list[Outcome]:
        closed = self._cut(decision.actuator, forecast.target, decision.id, tick, alone=False)
        self._open[decision.id] = Window(decision, forecast, tick)
        for id, window in self._open.items():
            if window.from_tick == tick:
                self._open[id] = self._looked_back(window)
        return closed

    def _looked_back(self, window: Window) -> Window:
        """With what was measured before it."""
        tick, name, lately = window.from_tick, window.target, window.from_tick - window.forecast.horizon
        back = self._back if self._back is not None and self._back[0] == tick else None
        since, samples = self._last_change("", tick), self._state.rules.outcome_samples
        spec = self._state.spec(window.decision.actuator)
        if not spec.moves_weights:  # that undoes the changes before it, so what they left counts
            since = max(since, self._last_change(name, tick))
        again: tuple[float, float] | None = None
        if back is None:
            found = self._measured.between(name, max(since, lately), tick)
        else:
            again = max(back[2], back[1] - window.forecast.horizon), back[1]
            found = self._measured.of_steps(name, *again, since=since, upto=tick)
        before = usual = tuple(filter(sound, found))
        spoiled, scant = bool(found) and not sound(found[-1]), False
        if back is not None:
            usual, scant = tuple(filter(sound, self._measured.between(name, lately, tick))), len(before) < samples
        if len(before) < (1 if scant else samples):
            found = self._measured.between(name, max(since, tick - window.patience), tick)
            before = tuple(filter(sound, found))[-samples:]
            usual, spoiled = usual or before if scant else before, bool(found) and not sound(found[-1])
        return replace(
            window, before=before, usual=usual, spoiled=spoiled, scant=scant, again=None if scant or spoiled else again
        )

    def _cut(self, actuator: str, target: str, by: str, tick: int, *, alone: bool) -> list[Outcome]:
        """Close the windows that a change of `actuator`, judged by `target`, disturbs. `alone`: it is in no plan."""
        everything = self._state.spec(actuator).moves_weights
        cut = [
            window
            for window in self._open.values()
            if (everything or window.target == target or window.decision.actuator == actuator)
            and (alone or window.from_tick != tick or window.decision.actuator == actuator)
        ]
        return [self._closed(window, f"confounded by {actuator} (decision {by})") for window in cut]

    def _due(self, window: Window) -> bool:
        elapsed = self._state.tick - window.from_tick
        if window.again is not None:
            if self._step < window.again[1] and elapsed < window.patience:
                return False
        elif elapsed < window.forecast.horizon:
            return False
        after = self._after(window)
        enough = sum(map(sound, after)) >= self._state.rules.outcome_samples or not all(map(sound, after[-1:]))
        return enough or elapsed >= window.patience

    def _after(self, window: Window) -> list[float]:
        """What counts of the time since the change: its second half, or all of it if it was cut short; after a rollback
        the same steps as before it."""
        if window.again is not None:
            tick = window.from_tick
            return self._measured.of_steps(window.target, *window.again, since=tick, upto=self._state.tick)
        elapsed, horizon = self._state.tick - window.from_tick, window.forecast.horizon
        settling = min(elapsed, horizon) // 2 if 2 * elapsed >= horizon else 0
        return self._measured.between(window.target, window.from_tick + settling, self._state.tick)

    def _closed(self, window: Window, cut: str = "") -> Outcome:
        del self._open[window.decision.id]
        found, least = self._after(window), self._state.rules.outcome_samples
        after = tuple(value for value in found if sound(value))
        early = self._early(window)
        why = f"; {cut}" if cut else ""
        if window.spoiled and len(after) >= least and sound(found[-1]) and not early:
            return self._scoring.scored(window, after, None, f"{window.target} is finite again{why}", 1.0)
        if len(window.before) < (1 if window.scant else least):
            few = f"{len(window.before)} measurements of {window.target} before it, {least} are needed"
            return self._scoring.unscored(window, after, few + why)
        if found and not sound(found[-1]):
            broken = f"{window.target} is not finite any more"
            if early and window.spoiled:
                return self._scoring.unscored(window, after, broken + why)
            return self._scoring.scored(window, after, None, broken + why)
        if len(after) < least:
            few = f"{len(after)} measurements of {window.target} after it, {least} are needed"
            return self._scoring.unscored(window, after, few + why)
        seen = effect(window.before, after, window.forecast.sign, window.usual)
        told = f"{window.target} {seen.before:.4g} → {seen.after:.4g}, a gain of {seen.gain:.3g} ± {seen.noise:.2g}"
        if (early or window.scant) and not failed(seen.gain, seen.noise):
            half = f"before half of its {window.forecast.horizon} ticks"
            few = f"it threw away fewer than {least} measurements of {window.target}"
            return self._scoring.unscored(window, after, f"{cut} {half}" if early else few + why)
        return self._scoring.scored(window, after, seen, told + why)

    def _early(self, window: Window) -> bool:
        """Whether less than half of the time is over, or of the steps that are trained again."""
        if window.again is not None:
            return 2 * self._step < sum(window.again)
        return 2 * (self._state.tick - window.from_tick) < window.forecast.horizon

    def _lapse(self, decision: Decision) -> int:
        """The tick from which no one will carry it out any more."""
        rules = self._state.rules
        return max(decision.expires_at_tick, decision.tick + rules.approve_ticks) + rules.outcome_ticks

    def _change(self, metric: str, tick: int) -> None:
        newest, older = self._changed.get(metric, (-1, -1))
        if tick > newest:
            self._changed[metric] = tick, newest
        elif older < tick < newest:
            self._changed[metric] = newest, tick

    def _last_change(self, metric: str, before: int) -> int:
        """The newest before that tick: changes at one tick (a rollback and a cut) are one to the metric."""
        return max((tick for tick in self._changed.get(metric, ()) if tick < before), default=-1)
