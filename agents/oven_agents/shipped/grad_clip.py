"""Sets the gradient clip so that it only affects outliers."""

from __future__ import annotations

import math
from statistics import median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import estimate_confidence, tentative_confidence
from oven_agents.stats.health import gradient_health
from oven_agents.stats.level_shift import shift_of_newest, standardised_rise
from oven_agents.stats.objective import apply_sign, objective
from oven_agents.stats.reviews import review_change
from oven_agents.stats.robust_statistics import quantile
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

CLIP, GRAD_NORM, LR_SCALE = "grad.clip", "grad_norm", "optimizer.lr_scale"


class GradClip(Agent):
    """Signals: there are two, both in the gradient norm before clipping. Outliers: three of the last 60 norms were
    above five times their median, and the clip let them pass. Drift: the norm grew by a factor of three or more, well
    beyond its noise, while the objective got worse.

    Actions: for outliers, sets the clip to one and a half times the 0.9 quantile. ZClip (Kumar et al. 2025, arXiv
    2504.02507) and AdaGC (Wang et al. 2025, arXiv 2502.11034) also clip gradients against their own recent norms, but
    at every step. The new clip limits the next outlier. The harm of the previous ones is left to the divergence agent,
    because a lower clip does not undo it. For a drift, sets the clip to the earlier 0.9 quantile, so that steps stay as
    short as before. This is a rule of thumb with a tentative confidence: 3 of 12 measured outcomes were better than no
    change.

    False alarms: with a log-normal spread of 0.5, a norm exceeds five times the median with probability 0.0006, and
    three of 60 norms do so with probability 10⁻⁵. For a drift, the mean of 20 logarithms must rise by more than 6
    standard errors.

    Limits: under Adam, a clip only changes the length of steps until the moments adapt. So a steady drift is slowed but
    not cured.
    """

    needs = (GRAD_NORM,)
    moves = (CLIP,)
    options = dict.fromkeys(("max_outlier_share", "confidence"), SHARE_BOUNDS)

    WINDOW = 60
    """Number of newest ticks to read norms from. The false alarm rates above apply to this value."""
    RECENT_TICKS = 20
    """Number of newest ticks for a drift. They are compared with the rest of WINDOW."""
    OUTLIER_FACTOR = 5.0
    """Multiple of the median above which a norm is an outlier."""
    MIN_OUTLIERS = 3
    """Minimum number of outliers within WINDOW. Fewer occur by chance, and `divergence` handles a single one."""
    MAX_OUTLIER_SHARE = 0.15
    """Maximum share of outliers among the norms, 0 to 1. Above it, most steps have no signal."""
    MIN_CLIP_RATIO = 2.0
    """Minimum factor by which a proposal lowers the clip. Smaller changes have no visible effect."""
    MIN_GROWTH = 3.0
    """Minimum growth of the median norm for a drift. Norms may grow less in a run that improves."""
    MIN_ERRORS = 6.0
    """Standard errors by which the mean logarithm must rise for a drift, high because a wrong clip slows the run."""
    CONFIDENCE = 0.85
    """Confidence for outliers before noise is taken into account: the highest that measured outcomes support."""
    GAIN = 0.02
    """Forecast gain of the objective, in its unit. It is small because the change prevents harm and repairs nothing."""
    HORIZON = 40
    """Number of ticks after which the forecast is judged, long enough for outliers to recur."""

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(CLIP, LR_SCALE)
        norms = [norm for _, norm in window.surviving_series(GRAD_NORM, after=since, last=self.WINDOW)]
        if len(norms) < self.WINDOW or not all(math.isfinite(norm) and norm > 0 for norm in norms):
            return None
        return self._treat_outliers(window, norms) or self._treat_drift(window, norms)

    def can_review(self, run: RunStarted) -> bool:
        return any(metric.name == GRAD_NORM for metric in run.metrics)

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return review_change(ballot, window, gradient_health)

    def _treat_outliers(self, window: Window, norms: list[float]) -> Vote | None:
        median_norm = median(norms)
        outliers = [norm for norm in norms if norm > self.OUTLIER_FACTOR * median_norm]
        if not self.MIN_OUTLIERS <= len(outliers) <= self.MAX_OUTLIER_SHARE * len(norms):
            return None
        why = (
            f"{len(outliers)} of {len(norms)} gradient norms exceeded {self.OUTLIER_FACTOR:g} times their median "
            f"({median_norm:.3g})"
        )
        target = objective(window.run).name
        confidence = estimate_confidence(
            window, hit_rate=self.CONFIDENCE, target=target, gain=self.GAIN, horizon=self.HORIZON
        )
        return self._tighten(window, 1.5 * quantile(norms, 0.9), why, "grad_norm_spike", confidence)

    def _treat_drift(self, window: Window, norms: list[float]) -> Vote | None:
        logs = [math.log(norm) for norm in norms]
        shift = shift_of_newest(norms, self.RECENT_TICKS)
        old, new = median(shift.before), median(shift.now)
        if new < self.MIN_GROWTH * old or standardised_rise(logs, self.RECENT_TICKS) < self.MIN_ERRORS:
            return None
        target = objective(window.run)
        harm = [-apply_sign(target, value) for _, value in window.surviving_series(target.name, last=self.WINDOW)]
        if standardised_rise(harm, self.RECENT_TICKS) < 2:
            return None  # larger gradients are not a fault while the objective improves
        why = f"the gradient norm grew from {old:.3g} to {new:.3g}, and {target.name} got worse"
        return self._tighten(
            window, quantile(shift.before, 0.9), why, "grad_norm_growth", tentative_confidence(window.run)
        )

    def _tighten(self, window: Window, clip: float, why: str, symptom: str, confidence: float) -> Vote | None:
        """Propose a lower clip. Return None if the current clip already stops the outliers, or nearly does."""
        knob = window.knobs[CLIP]
        lowered = knob.bounded(clip)
        if lowered > knob.number / self.MIN_CLIP_RATIO:
            return None
        target = objective(window.run)
        return window.propose(
            CLIP, lowered, confidence=confidence, why=f"{why}: {CLIP} {knob.number:.3g} → {lowered:.3g}",
            target=target.name, expected_change=apply_sign(target, self.GAIN), horizon=self.HORIZON,
            evidence=(f"symptom:{symptom}",),
        )  # fmt: skip
