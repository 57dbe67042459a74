"""Detects a policy that drifts away from a frontier model's answers, or ever faster from the reference model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from oven_agents.sdk.agent import Agent, unmeasured_reasons
from oven_agents.sdk.window import MIN_KNOB_FACTOR, Window
from oven_agents.stats import symptoms
from oven_agents.stats.confidence import tentative_confidence
from oven_agents.stats.health import anchor_health
from oven_agents.stats.objective import apply_sign, held_out_metric, objective, readings
from oven_agents.stats.reviews import review_change
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

FRONTIER_BITS, FRONTIER_KL = "frontier/bits_per_byte", "frontier/kl"
BETA, LR_SCALE, ROLLBACK = "grpo.beta", "optimizer.lr_scale", "run.rollback"


class Drift(Agent):
    """Signals: the change of the frontier calibrator's metrics since step 0 (docs/judging.md). Either the bits per byte
    of a frontier model's answers grew by more than MIN_BITS_GROWTH, or the divergence from that model by more than
    MIN_KL_GROWTH. The metric must also have grown at each of the newest GROWING_READINGS. The texts are fixed and never
    trained on, so a reading has no noise, and growth means drift. Two more signals need no frontier model: a KL to the
    reference that triples within 15 ticks, and answers that shrink below 0.6 of their length
    (oven_agents.stats.symptoms).

    Actions: raises alerts for the last two signals until the KL or the length is back near its earlier level. If the KL
    runs away or the frontier readings grow, and the run's own held-out readings do not rise, it proposes to slow the
    drift: to raise β by half, or to lower the rate by a third if there is no β above 0. The agent's
    confidence is only tentative, because a policy trained for one task may lose other skills without harm to this task
    (the alignment tax, Ouyang et al. 2022, arXiv 2203.02155, §4.2). The user has to decide whether that matters.

    False alarms: training for a form that the frontier model does not write (digits alone, another language) moves the
    policy away while it learns. So the agent is silent if a held-out metric rises, or without one, if the objective
    rises. After its own change, it waits for GROWING_READINGS new readings.

    Limits: only the prompts of the frontier probes are measured. A policy that drifts in a single jump is not detected,
    because its readings no longer grow. The outcomes of the agent's votes were not measured yet.
    """

    reads = (symptoms.KL, FRONTIER_BITS, FRONTIER_KL)
    moves = (BETA, LR_SCALE)

    GROWING_READINGS = 4
    """Number of newest readings that must each exceed the one before. A cyclic learning rate may cause three."""
    MIN_BITS_GROWTH = 0.05
    """Minimum growth in bits per byte. English text has 0.6 to 1. The value was not tuned."""
    MIN_KL_GROWTH = 0.1
    """Minimum growth of the divergence in nats per position. The value was not tuned."""
    FRESH_TICKS = 5
    """Number of ticks for which a reading counts as new, because the agent may skip ticks."""
    BETA_FACTOR = 1.5
    """Factor of β: half the increase of entropy_collapse, because nothing is lost yet."""
    RATE_FACTOR = 0.67
    """Factor of the rate if there is no β."""
    GAIN = 0.01
    """Forecast gain of the objective, in its unit. It is small because the change prevents harm and repairs nothing."""
    HORIZON = 60
    """Number of ticks after which the forecast is judged. They contain at least one reading."""
    WAIT_TICKS = 20
    """Number of ticks to wait after a change if the KL runs away, and over which to look for gains."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        published = {metric.name for metric in run.metrics}
        if not published & {FRONTIER_BITS, symptoms.KL, symptoms.COMPLETION_LENGTH}:
            names = f"{FRONTIER_BITS}, {symptoms.KL} and {symptoms.COMPLETION_LENGTH}"
            return f"the run publishes none of {names}{unmeasured_reasons(run, FRONTIER_BITS)}"
        # With only the length, the agent needs no knob, because it raises alerts and never votes.
        return super().cannot_fire(run) if published & {FRONTIER_BITS, symptoms.KL} else None

    def alerts(self, window: Window) -> Sequence[Alert]:
        return symptoms.as_alerts(window, symptoms.length_sighting(window), symptoms.kl_sighting(window))

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(BETA, LR_SCALE, ROLLBACK)
        for metric, min_growth, unit in (
            (FRONTIER_BITS, self.MIN_BITS_GROWTH, "bits per byte"),
            (FRONTIER_KL, self.MIN_KL_GROWTH, "nats per position"),
        ):
            count = int(self.GROWING_READINGS)
            points = window.surviving_series(metric, after=since, last=count)
            ticks, values = [tick for tick, _ in points], [value for _, value in points]
            if len(values) < count or not all(map(math.isfinite, values)):
                continue
            if not window.is_new(ticks[-1] + int(self.FRESH_TICKS)):
                continue
            grows = all(later > before for before, later in pairwise(values))
            if grows and values[-1] > min_growth and not self._improves(window, ticks[0]):
                why = (
                    f"{metric} is {values[-1]:.3g} {unit} above step 0 and grew at each of {count} readings (from "
                    f"{values[0]:.3g}) while nothing improved"
                )
                return self._slow_drift(window, why, "symptom:frontier_drift")
        return self._treat_runaway_kl(window, since)

    def can_review(self, run: RunStarted) -> bool:
        return any(metric.name == symptoms.KL for metric in run.metrics)

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return review_change(ballot, window, anchor_health)

    def _treat_runaway_kl(self, window: Window, since: int) -> Vote | None:
        """Propose to slow the drift if the KL to the reference ran away recently, without a gain."""
        runaway = symptoms.detect_kl_runaway(symptoms.reference_kls(window)[-symptoms.SEARCH_LENGTH :])
        wait_begin = window.tick - int(self.WAIT_TICKS)
        if runaway is None or (since >= 0 and since > wait_begin):
            return None
        has_improved = self._improves if readings(window) else self._objective_rises
        if has_improved(window, wait_begin):
            return None
        return self._slow_drift(window, runaway.why, "symptom:kl_runaway")

    def _improves(self, window: Window, since: int) -> bool:
        """Return whether the best held-out reading is from after tick `since`. Without a held-out metric, return
        whether the objective rises. If there are too few measurements, return True, so that the agent is silent."""
        if held_out_metric(window.run) is not None:
            points = readings(window)
            before = [value for tick, value in points if tick <= since]
            after = [value for tick, value in points if tick > since]
            return not before or not after or max(after) > max(before)
        return self._objective_rises(window, since)

    def _objective_rises(self, window: Window, since: int) -> bool:
        """Return whether the objective's mean rose from the first to the second half of the ticks from `since` on, or
        True if there are too few measurements."""
        target = objective(window.run)
        points = window.surviving_series(target.name)
        values = [apply_sign(target, value) for tick, value in points if tick >= since]
        half = len(values) // 2
        if half < 1:
            return True
        old_mean, new_mean = sum(values[:half]) / half, sum(values[half:]) / (len(values) - half)
        return new_mean > old_mean

    def _slow_drift(self, window: Window, why: str, symptom: str) -> Vote | None:
        """Propose a higher β, or a lower rate if there is no β above 0."""
        beta, scale = window.knobs.get(BETA), window.knobs.get(LR_SCALE)
        if beta is not None and beta.number > 0:
            raised = beta.bounded(beta.number * self.BETA_FACTOR)
            if raised > beta.number:
                why += f": {BETA} {beta.number:.3g} → {raised:.3g}"
                return self._propose(window, BETA, raised, why, symptom)
        if scale is not None:
            lowered = scale.bounded(scale.number * self.RATE_FACTOR)
            if lowered < scale.number / MIN_KNOB_FACTOR:
                why += f": {LR_SCALE} {scale.number:.3g} → {lowered:.3g}"
                return self._propose(window, LR_SCALE, lowered, why, symptom)
        return None

    def _propose(self, window: Window, actuator: str, value: float, why: str, symptom: str) -> Vote:
        target = held_out_metric(window.run) or objective(window.run)
        return window.propose(
            actuator, value, confidence=tentative_confidence(window.run), why=why, target=target.name,
            expected_change=apply_sign(target, self.GAIN), horizon=int(self.HORIZON), evidence=(symptom,),
        )  # fmt: skip
