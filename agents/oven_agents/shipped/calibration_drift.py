"""Detects a policy whose stated confidence no longer matches its accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from oven_agents.sdk.agent import Agent, unmeasured_reasons
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence, tentative_confidence
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.symptoms import (
    ECE,
    ECE_NULL,
    ECE_NULL_99,
    as_alerts,
    calibration_readings,
    detect_calibration_drift,
)
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import MetricSpec, RunStarted

LAMBDA, BETA, LR_SCALE, ROLLBACK = "reward.calibration", "grpo.beta", "optimizer.lr_scale", "run.rollback"
TARGETS = ("eval/brier", "eval/ece")
"""Held-out metrics by which a change is judged, the best one first. Only the Brier score is a proper score."""


class CalibrationDrift(Agent):
    """Signals: the expected calibration error of the newest answers exceeds the 99 % quantile of its null distribution
    (the errors of a perfect forecaster with the same confidences). It must do so at two readings that share at most
    half of their answers, and it must not be falling. At 250 answers, the quantile is 0.06 for spread confidences and
    0.02 for equal ones, so a fixed bound would not work (Roelofs et al. 2022, arXiv 2012.08668, on the bias of binned
    errors).

    Actions: raises an alert for as long as the drift lasts, and offers four plans. The first is a larger weight λ for
    the calibration term in the reward. The second is a rollback to the last calibrated tick at half the learning rate.
    The third is a larger β, which helps if the reference model is calibrated. The fourth is a lower learning rate. The
    agent is more confident in λ or a rollback, because the error is certain and both undo it directly
    (oven_agents.stats.confidence).

    False alarms: an error that twice exceeds the null's 99 % quantile and MIN_EXCESS_ECE occurs in less than 1 % of
    simulated healthy runs of 240 ticks. A policy that starts badly calibrated and improves raises an alert, but gets no
    vote.

    Limits: the agent needs an error and its null from the learner. It does not know the cause: a change of the judges
    looks the same as a change of the policy. If only the null's mean is published, the bound is 3.3 times this mean,
    and small drifts go unnoticed.
    """

    needs = (ECE,)
    moves = (LAMBDA, ROLLBACK, LR_SCALE, BETA)

    WAIT_TICKS = 20
    """Number of ticks to wait after a change of the agent's knobs, until readings cover only later answers."""
    MIN_RECOVERY = 0.01
    """Minimum fall of the error within WAIT_TICKS / 2 readings that counts as recovery."""
    LAMBDA_FACTOR = 2.0
    """Factor of λ: the smallest one with a visible effect within a few dozen steps."""
    MIN_LAMBDA = 0.1
    """Minimum λ after a raise, 0 to 1, because multiplying 0 changes nothing."""
    RATE_FACTOR = 0.5
    """Factor of the learning rate, both with a rollback and alone."""
    BETA_FACTOR = 2.0
    """Factor of β, as in `entropy_collapse`."""
    MIN_BETA = 0.05
    """Minimum β after a raise, as in the first reports on GRPO for language models."""
    GAIN = 0.03
    """Forecast gain of the target: the smallest excess error that raises an alert."""
    HORIZON = 60
    """Number of ticks after which the forecast is judged. They contain several held-out evaluations."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        published = {metric.name for metric in run.metrics}
        if ECE not in published or not published & {ECE_NULL, ECE_NULL_99}:
            return f"the run publishes no {ECE} with {ECE_NULL_99} or {ECE_NULL}{unmeasured_reasons(run, ECE)}"
        return None  # without a knob it still raises alerts

    def alerts(self, window: Window) -> Sequence[Alert]:
        return as_alerts(window, detect_calibration_drift(calibration_readings(window)))

    def vote(self, window: Window) -> Alternatives | None:
        since = window.last_change_tick(LAMBDA, ROLLBACK, LR_SCALE, BETA)
        if since >= 0 and window.tick < since + self.WAIT_TICKS:
            return None
        readings = calibration_readings(window)
        sighting = detect_calibration_drift(readings)
        errors = [error for _, error, _ in readings]
        lag = int(self.WAIT_TICKS / 2)
        if sighting is None or len(errors) <= lag or errors[-1] < errors[-1 - lag] - self.MIN_RECOVERY:
            return None
        calibrated_ticks = [tick for tick, error, null in readings if error <= null]
        return self._offer(window, sighting.why, calibrated_ticks[-1] if calibrated_ticks else None)

    def _offer(self, window: Window, why: str, calibrated_tick: int | None) -> Alternatives | None:
        knobs, target = window.knobs, _target_metric(window.run)
        firm, tentative = firm_confidence(window.run), tentative_confidence(window.run)
        plans = []
        weight, beta, scale = knobs.get(LAMBDA), knobs.get(BETA), knobs.get(LR_SCALE)
        if weight is not None and held_out_metric(window.run) is not None:
            raised = weight.bounded(max(self.LAMBDA_FACTOR * weight.number, self.MIN_LAMBDA))
            if raised > weight.number:
                plans.append(("raise_calibration", {LAMBDA: raised}, firm))
        if calibrated_tick is not None and ROLLBACK in knobs and scale is not None:
            lowered = scale.bounded(self.RATE_FACTOR * scale.number)
            changes = {ROLLBACK: float(calibrated_tick), LR_SCALE: lowered}
            plans.append(("rollback_and_cut", changes, firm))
        if beta is not None:
            raised_beta = beta.bounded(max(self.BETA_FACTOR * beta.number, self.MIN_BETA))
            if raised_beta > beta.number:
                plans.append(("raise_beta", {BETA: raised_beta}, tentative))
        if scale is not None:
            lowered = scale.bounded(self.RATE_FACTOR * scale.number)
            if lowered < scale.number:
                plans.append(("lower_lr", {LR_SCALE: lowered}, tentative))
        offered_plans = [
            Plan.of_numbers(
                window, remedy, changes, confidence=confidence, why=why, target=target.name,
                expected_change=apply_sign(target, self.GAIN), horizon=int(self.HORIZON),
            )
            for remedy, changes, confidence in plans
        ]  # fmt: skip
        return offer(offered_plans, {"calibration_drift": 0.8})


def _target_metric(run: RunStarted) -> MetricSpec:
    """Return the metric by which a change is judged."""
    announced = {spec.name: spec for spec in run.metrics if spec.held_out and spec.better != "neither"}
    return next((announced[name] for name in TARGETS if name in announced), held_out_metric(run) or objective(run))
