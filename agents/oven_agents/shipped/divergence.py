"""Detects a diverging run and proposes a remedy. The signs are a loss that jumps, creeps up or is not finite, weights
that moved without a matching update, and a huge gradient that the clip did not catch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import ClassVar

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import confidence
from oven_agents.stats.evaluation_request import held_out_evidence, request_evaluation
from oven_agents.stats.level_shift import rise
from oven_agents.stats.objective import objective, readings, signed
from oven_agents.stats.optimizer_gauges import LENGTH, NORM, RATE, grown, moved, shrink_share, unexplained_jump
from oven_agents.stats.robust_statistics import noise, since
from oven_agents.stats.rollback_success import last_rollback_failed, rollbacks_exhausted
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import RunStarted, Vote

ROLLBACK, SCALE, SKIP, MIXTURE = "run.rollback", "optimizer.lr_scale", "data.skip", "data.mixture"
LOSS, ALIGNMENT = "loss", "optim/grad_momentum_cos"
GAUGES = ("loss", "grad_norm", "reward")
LEAST_GAIN = 0.05
"""Forecast gain of the objective if the loss does not show how much was lost."""
SKIPPING, CUTTING, RETURNING = "rollback_and_skip", "rollback_and_cut", "rollback"
PASSING = "skip_batches"


@dataclass(frozen=True, slots=True)
class _Harm:
    symptom: str
    severity: float
    onset: int
    """Tick of the first sign."""
    why: str
    excess: float = 0.0
    """Mean excess of the loss over its level in the ticks that a rollback discards."""
    level: float = 0.0
    """Level of the loss, or of the reward, before the harm."""
    order: tuple[str, ...] = (SKIPPING, CUTTING, RETURNING)
    stubborn: bool = False
    """The run has nothing to lose, so remedies are tried again."""
    shows: bool = True
    """Whether held-out data show the harm at once: not if it broke the moments or a value is not a number."""
    sure: float = 0.75
    """Share of such cases in which a rollback helped."""


class Divergence(Agent):
    """Signals: in this order, a gauge that is not finite; weights whose norm changed by more than the update; a
    gradient ten times any of the last 32 that also made steps half as long again, so that no clip held it and the
    moments remember it; a loss that jumps (three values in a row above 3σ) and does not fall back by half; a loss that
    creeps up (a mean of ten above 4.5 standard errors and a worse held-out loss, or a mean of five above 3 and longer
    steps). The last two need a second sign from the gradient, the step length or a held-out reading, because a loss
    that moves alone may be reported in another unit.

    Actions: if the run can measure on request, displaced weights and a risen loss are first confirmed by a held-out
    reading. Harm that held-out data do not show is left alone. If they lost less than OWN of the rise, the batches are
    skipped and no step is discarded; if the loss stays high, the agent goes back only if a newer reading shows damaged
    weights. Otherwise it offers, the most likely first: rollback and skip past the batches (PaLM, Chowdhery et al.
    2022, arXiv 2204.02311, §5.1: only those batches with those weights made the spike); rollback and cut if the rate
    has grown, by that factor, or if successive gradients undo each other, by CUT (neither alone repairs a rate that is
    too high), but not while something else moves the weights; a rollback alone if weights or moments were hurt. It goes
    back to before the most likely onset of the rise (oven_agents.stats.robust_statistics). A remedy tried within MEMORY
    ticks is not offered again. Once rollbacks are exhausted, only a run of NaN gets an offer, and after a failed one a
    risen loss only leads to a cut that the steps themselves support (oven_agents.stats.rollback_success).

    False alarms: on independent noise, none for a gauge that is not finite or for displaced weights (triangle
    inequality). For a gradient below 10⁻⁵ per step times the second sign, with a log-normal spread of 0.5. For a jump
    10⁻⁸ per step, and below 10⁻⁵ if σ is underestimated by a third. For a creeping loss 10⁻⁵ and 10⁻³ before the second
    sign.

    Limits: under a reward (GRPO) only the first two signals count, because the loss has no level, and a gradient
    outlier is a ratio of probabilities that comes again: of seven runs that went back from one, six were no better. The
    agent needs snapshots from before the harm.
    """

    needs = (LOSS,)
    moves = (ROLLBACK, SCALE, SKIP, EVALUATE)
    speciality = (ROLLBACK, SCALE, SKIP, EVALUATE)
    options = dict.fromkeys(("healed", "minded", "own", "jumped", "crept", "broken", "again", "past"), SHARE)

    HIGH = 3.0
    """Noise deviations above its level from which a loss is high."""
    IN_A_ROW = 3
    """High values in a row that make a jump: at 3σ, 10⁻⁸ per step on independent noise."""
    CREEP = 4.5
    """Standard errors by which the mean of RECENT values must exceed the level: 10⁻⁵ on independent noise."""
    RECENT = 10
    """Newest ticks for a creeping loss and a gradient outlier. An older jump is the loss's new level."""
    TELLING = 3.0
    """Standard errors for the mean of FEW values if steps have grown longer: 10⁻³ on independent noise."""
    FEW = 5
    """Newest ticks that are enough if steps have grown longer."""
    REFERENCE = 32
    """Earlier ticks that give the level and the noise. More of them lag behind a falling loss."""
    LONGER = 1.8
    """Growth of the rate, or of a step's length, from which it is the cause. Less would often be noise of the
    length."""
    HEALED = 0.5
    """Share of a jump's height, 0 to 1, below which it heals by itself."""
    MINDED = 0.004
    """Share of a held-out reading, 0 to 1, that chance accounts for; set after the fourth held-out run."""
    OWN = 0.3
    """Share of the loss's rise, 0 to 1, that held-out quality loses if the weights are to blame. Both are shares of
    their level. Below it, skipping the batches did about as well as going back."""
    OUTLIER = 10.0
    """Multiple of the largest norm of REFERENCE ticks. Log-normal noise with a spread of 0.5 gets there below 10⁻⁵."""
    HELD = 1.5
    """Growth of the step length after the outlier; otherwise a clip held the gradient."""
    BEFORE = 2
    """Ticks before the first sign to go back to. Weights may have been hurt a step before the loss shows it."""
    CUT = 8.0
    """Factor of the cut if the rate had not grown. With a rollback it undid 0.90 of the harm of a rate 25 times too
    high."""
    PASSED = 100
    """Batches to skip. PaLM skipped 200 to 500 of a far longer run."""
    MEMORY = 60
    """Ticks for which a remedy counts as tried. With fewer, data that stay harder get the same remedy again; with more,
    a second fault gets none."""
    SOON = 8
    """Ticks after a rollback in which new harm must have been in the snapshot. Then it goes further back, once."""
    HORIZON = 20
    """Ticks in which the forecast is judged. What was lost comes back at once, or not at all."""
    MOVED: ClassVar[dict[str, float]] = {NORM: 3.0, LENGTH: 6.0}
    """Deviations by which another gauge must move with the loss. By chance, a norm is 2.5 away in one tick of ten;
    lengths of successive steps are not independent."""
    JUMPED = 0.7
    """Confidence for a jump, from outcomes in development."""
    CREPT = 0.7
    """Confidence for a creeping loss, from outcomes. Of twelve whose batches were skipped, half came true."""
    BROKEN = 0.65
    """Confidence for a run of NaN, also from outcomes. It may take several attempts."""
    AGAIN = 0.7
    """Confidence for a second remedy, also from outcomes; at most that of the signal itself."""
    PAST = 0.65
    """Confidence for skipped batches, also from outcomes. Their fault may continue in later batches."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if ROLLBACK not in {spec.name for spec in run.actuators}:
            return f"the run announces no {ROLLBACK}: there is nothing to go back to"
        return None

    def vote(self, window: Window) -> Alternatives | Vote | None:
        harm = self._broken(window) or self._damaged(window) or self._poisoned(window) or self._risen(window)
        if harm is None or (rollbacks_exhausted(window) and harm.symptom != "loss_nan"):
            return None
        return self._weigh_evidence(window, harm) if harm.shows else self._offer(window, harm)

    def _weigh_evidence(self, window: Window, harm: _Harm) -> Alternatives | Vote | None:
        """Act on a held-out reading, or ask for one."""
        evidence = held_out_evidence(window, harm.onset, self._passed(window, harm.onset))
        if evidence.state == "ask":
            return request_evaluation(window, harm.why)
        if evidence.state == "wait" or (evidence.state == "known" and evidence.lost <= self.MINDED):
            return None
        if evidence.state == "known" and not harm.excess and math.isfinite(evidence.lost):
            harm = replace(harm, excess=evidence.lost * harm.level)
        if (
            evidence.state == "known"
            and harm.order[0] == SKIPPING
            and evidence.lost * abs(harm.level) < self.OWN * harm.excess
        ):
            harm = replace(harm, order=(PASSING,), sure=self.PAST)
        return self._offer(window, harm)

    def _passed(self, window: Window, onset: int) -> int:
        """Return the tick of the last skip without a rollback since `onset`; −1 without one."""
        backs = {receipt.tick for receipt in window.applied(ROLLBACK)}
        return max((r.tick for r in window.applied(SKIP) if r.tick >= onset and r.tick not in backs), default=-1)

    def _broken(self, window: Window) -> _Harm | None:
        gauge = next((g for g in GAUGES if not math.isfinite(window.last.metrics.get(g, 0.0))), "")
        if not gauge:
            return None
        first = window.tick
        for observation in reversed(window.observations):
            if all(math.isfinite(observation.metrics.get(g, 0.0)) for g in GAUGES):
                break
            first = observation.tick
        why = f"{gauge} is not a finite number since tick {first}"
        return _Harm("loss_nan", 1.0, first, why, stubborn=True, shows=False, sure=self.BROKEN)

    def _damaged(self, window: Window) -> _Harm | None:
        displacement = unexplained_jump(window, window.last_change_tick(ROLLBACK))
        if displacement is None:
            return None
        tick, beyond = displacement
        why = f"the norm of the weights changed by {beyond:.1%} beyond the update of tick {tick - 1}"
        before = [
            value
            for measured_at, value in window.surviving_series(objective(window.run).name, last=self.REFERENCE)
            if measured_at < tick
        ]
        level = abs(median(before)) if before else 0.0
        return _Harm("weights_displaced", 1.0, tick, why, level=level, order=(RETURNING,), stubborn=True)

    def _poisoned(self, window: Window) -> _Harm | None:
        """Look for an outlier for a few ticks, because a rollback may have to wait. The newest step's length may not
        show it."""
        if objective(window.run).name != LOSS:
            return None
        norms = window.surviving_series(NORM, last=self.REFERENCE + self.RECENT)
        values = [value for _, value in norms]
        if len(values) < self.REFERENCE // 2 + self.RECENT or not all(map(math.isfinite, values)):
            return None
        before = max(values[: -self.RECENT] + self._thrown_away(window))
        tick, norm = next(((t, v) for t, v in norms[-self.RECENT : -1] if v > self.OUTLIER * before), (0, 0.0))
        if not norm or grown(window, LENGTH) < self.HELD:
            return None
        why = f"a gradient of norm {norm:.3g}, {norm / before:.0f} times the largest before it, got past the clip"
        why += f" at tick {tick}"
        order = (RETURNING, SKIPPING)
        return _Harm("grad_norm_spike", 1.0, tick, why, order=order, stubborn=True, shows=False)

    def _thrown_away(self, window: Window) -> list[float]:
        """Return norms from before the last rollback. An outlier that comes again after it is not a single event."""
        back = window.last_change_tick(ROLLBACK)
        lately = [o for o in window.observations if back - self.REFERENCE < o.tick <= back]
        return [norm for o in lately if math.isfinite(norm := o.metrics.get(NORM, math.nan))]

    def _risen(self, window: Window) -> _Harm | None:
        """Return harm from a risen loss. None if too little was measured since the last change that moves the loss, or
        if the weights shrink, which is not a fault of rate or data."""
        if objective(window.run).name != LOSS:
            return None
        fresh = window.last_change_tick(ROLLBACK, SCALE, SKIP)
        losses = window.surviving_series(
            LOSS, after=window.last_change_tick(MIXTURE), last=self.REFERENCE + self.RECENT
        )
        seen = [(tick, value) for tick, value in losses if math.isfinite(value)]
        recent = sum(tick > fresh for tick, _ in seen)
        if recent < self.IN_A_ROW or len(seen) < self.REFERENCE // 2:
            return None
        harm = self._jumped(window, seen) or self._crept(window, seen, recent)
        return harm if harm and self._confirmed(window, harm.onset) else None

    def _confirmed(self, window: Window, onset: int) -> bool:
        """Return whether a gradient, a step or a newer held-out reading moved with the loss. A loss that moves alone
        may be reported in another unit. True if neither gradient nor step can be compared."""
        deviations = [(moved(window, metric, onset), far) for metric, far in self.MOVED.items()]
        if all(errors is None for errors, _ in deviations):
            return True
        if any(errors is not None and abs(errors) > far for errors, far in deviations):
            return True
        return _worse(window, onset)

    def _jumped(self, window: Window, seen: list[tuple[int, float]]) -> _Harm | None:
        values = [value for _, value in seen]
        before = values[: -self.IN_A_ROW]
        level = median(before)
        spread = max(noise(before), 1e-3 * abs(level))
        high = level + self.HIGH * spread
        if min(values[-self.IN_A_ROW :]) <= high:
            return None
        count = next((i for i, value in enumerate(reversed(values)) if value <= high), len(values))
        excess = values[-1] - level
        if count > self.RECENT or excess < self.HEALED * (max(values[-count:]) - level):
            return None  # the loss has a new level, or it recovers
        risen = since(values[-2 * self.RECENT :], level)
        onset = seen[-risen][0]
        why = f"{LOSS} jumped from {level:.3g} (noise {spread:.2g}) to {values[-1]:.3g} at tick {onset} and stays"
        severity, lost = min(1.0, excess / (8 * spread)), fmean(values[-risen - self.BEFORE + 1 :]) - level
        return _Harm("loss_spike", severity, onset, why, lost, level, self._order(window, onset), sure=self.JUMPED)

    def _crept(self, window: Window, seen: list[tuple[int, float]], recent: int) -> _Harm | None:
        values = [value for _, value in seen]
        longer = grown(window, LENGTH) >= self.LONGER
        if longer and recent >= self.FEW and rise(values[-self.REFERENCE :], self.FEW) > self.TELLING:
            count = self.FEW
        elif recent >= self.RECENT and rise(values, self.RECENT) > self.CREEP and (longer or _worse(window)):
            count = self.RECENT
        else:
            return None
        level = median(values[:-count])
        excess = math.fsum(values[-count:]) / count - level
        why = f"{LOSS} rose from {level:.3g} to a mean of {level + excess:.3g} over {count} ticks"
        onset = seen[-since(values[-2 * self.RECENT :], level)][0]
        return _Harm("loss_creeps_up", 0.6, onset, why, excess, level, self._order(window, onset), sure=self.CREPT)

    def _order(self, window: Window, onset: int) -> tuple[str, ...]:
        if grown(window, RATE) >= self.LONGER:
            return (CUTTING, SKIPPING)
        if grown(window, LENGTH) >= self.LONGER and RETURNING not in self._tried(window, onset):
            return (RETURNING,)  # the rate is unchanged, so the moments were damaged; they go back with the weights
        return (SKIPPING, CUTTING)

    def _offer(self, window: Window, harm: _Harm) -> Alternatives | None:
        if shrink_share(window) > 0.5:
            return None  # the cause is weight decay, and neither rate nor data
        tried = self._tried(window, harm.onset)
        symptoms = {harm.symptom: harm.severity}
        cosines = window.series(ALIGNMENT, after=harm.onset - 1)
        if len(cosines) >= self.IN_A_ROW and median(cosines) < -0.2:
            symptoms["gradients_opposed"] = 0.5
        evident = harm.stubborn or "gradients_opposed" in symptoms or grown(window, LENGTH) >= self.LONGER
        if unexplained_jump(window, window.tick - self.MEMORY, self.MEMORY):
            evident = False  # no step caused it, and further steps repair the weights
        again = last_rollback_failed(window) and not harm.stubborn
        plans = [
            self._plan(window, remedy, harm)
            for remedy in sorted(harm.order, key=lambda remedy: remedy in tried)
            if (harm.stubborn or remedy not in tried)
            and (evident or remedy != CUTTING)
            and not (again and remedy not in (CUTTING, PASSING))
        ]
        return offer(plans, symptoms)

    def _tried(self, window: Window, onset: int) -> set[str]:
        """Return the remedies of the last MEMORY ticks, by what changed together with the rollback. A single rollback
        to a damaged snapshot does not count."""
        backs = {r.tick for r in window.applied(ROLLBACK) if r.tick > window.tick - self.MEMORY}
        with_cut = {r.tick for r in window.applied(SCALE)} & backs
        skipped = {r.tick for r in window.applied(SKIP) if r.tick > window.tick - self.MEMORY}
        with_skip = skipped & backs
        remedies = {CUTTING} if with_cut else set()
        remedies |= {SKIPPING} if with_skip else set()
        remedies |= {PASSING} if skipped - backs else set()
        return remedies | ({RETURNING} if backs and (len(backs) > 1 or self._hurt(window, onset) is None) else set())

    def _hurt(self, window: Window, onset: int) -> int | None:
        """Return the tick of the last rollback's snapshot if harm began again so SOON that the snapshot was damaged."""
        back = next(reversed(window.applied(ROLLBACK)), None)
        if back is None or not back.tick < onset <= back.tick + self.SOON or not isinstance(back.after, float):
            return None
        return max((o.tick for o in window.observations if o.tick <= back.tick and o.step <= back.after), default=None)

    def _plan(self, window: Window, remedy: str, harm: _Harm) -> Plan:
        """Return the plan of a remedy, empty if the run lacks one of its knobs, so that no half remedy is applied."""
        hurt = self._hurt(window, harm.onset) if remedy == RETURNING and not harm.stubborn else None
        back = max(0, harm.onset - self.BEFORE if hurt is None else hurt - 1)
        wanted = [] if remedy == PASSING else [(ROLLBACK, float(back), f"back to tick {back}")]
        if remedy in (SKIPPING, PASSING):
            if SKIP not in window.knobs:
                return Plan(remedy, ())
            wanted.append((SKIP, float(self.PASSED), f"past {self.PASSED} batches"))
        if remedy == CUTTING:
            if SCALE not in window.knobs:
                return Plan(remedy, ())
            knob, growth = window.knobs[SCALE], grown(window, RATE)
            lowered = knob.bounded(knob.number / (growth if growth >= self.LONGER else self.CUT))
            if lowered > knob.number / 1.2:
                return Plan(remedy, ())
            since = f", for the rate is {growth:.1f} times what it was" if growth >= self.LONGER else ""
            wanted.append((SCALE, lowered, f"{SCALE} {knob.number:.3g} → {lowered:.3g}{since}"))
        why = f"{harm.why}; {', '.join(text for _, _, text in wanted)}"
        target = objective(window.run)
        gain = harm.excess or LEAST_GAIN
        change = round(signed(target, gain), 4)
        again = not harm.stubborn and self._tried(window, harm.onset)
        sure = min(harm.sure, self.AGAIN) if again else harm.sure
        sure = confidence(window, hit_rate=sure, target=target.name, gain=gain, horizon=self.HORIZON, back=back)
        return Plan.of_changes(
            window, remedy, {name: value for name, value, _ in wanted}, confidence=sure, why=why, target=target.name,
            expected_change=change, horizon=self.HORIZON,
        )  # fmt: skip


def _worse(window: Window, since: int = -1) -> bool:
    """Return whether the newest held-out reading, from tick `since` or later, is worse than the one before."""
    last = readings(window, last=2)
    return len(last) == 2 and last[1][0] >= since and last[1][1] < last[0][1]
