"""Sets the gradient clip where it cuts outliers and nothing else."""

from __future__ import annotations

import math
from statistics import median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import confidence, needs_second
from oven_agents.stats.level_shift import newest, rise
from oven_agents.stats.objective import objective, signed
from oven_agents.stats.robust_statistics import quantile
from oven_core.protocol.messages import Vote

CLIP, NORM, SCALE = "grad.clip", "grad_norm", "optimizer.lr_scale"


class GradClip(Agent):
    """Signals: on the norm before clipping, outliers that come again, three of the last 60 norms above five times their
    median, and a clip that lets them pass. And drift: a norm that grew by a factor of three and more, well beyond its
    noise, while the objective got worse.

    Actions: for outliers the clip goes to one and a half times the 0.9 quantile. That is clipping against the
    gradients' own recent norms (ZClip, Kumar et al. 2025, arXiv 2504.02507; AdaGC, Wang et al. 2025, arXiv 2502.11034),
    at an agent's pace. It prevents the next one; the one that got past is divergence's (a clip lowered afterwards
    undid .00 of the harm: docs/experiments.md). For a drift the clip goes to the 0.9 quantile of before, so that steps
    are no longer than they were. That is a rule of thumb, for which a second voice is needed: of twelve outcomes in the
    gym a quarter beat doing nothing.

    False alarms: norms with a log-normal spread of .5 are five times their median with probability .0006, three of 60
    with 10⁻⁵; the drift is a mean of 20 logarithms above 6 standard errors.

    Limits: under Adam a clip changes the length of steps only for as long as the moments take to adapt, so a steady
    drift is slowed and not cured.
    """

    needs = (NORM,)
    moves = (CLIP,)
    speciality = (CLIP,)
    options = dict.fromkeys(("few", "sure"), SHARE)

    WINDOW = 60
    """Newest ticks whose norms are read; the false alarms above are stated for them."""
    LATELY = 20
    """Newest ticks that a drift is read from; the others of WINDOW are what it is compared with."""
    OUTLIER = 5.0
    """How many times the median a norm is that counts as an outlier. Norms with a log-normal spread of .5 are that with
    probability .0006."""
    OFTEN = 3
    """Outliers within WINDOW from which they come again; fewer happen by chance, and one alone is divergence's."""
    FEW = 0.15
    """Share of all norms above which outliers are none, 0 to 1: where so many are large, the median is that of steps in
    which there was nothing to learn (docs/experiments.md)."""
    MATTERS = 2.0
    """Factor by which a clip has to come down for a proposal. Smaller changes (1 to .8) were made in runs with and
    without a fault, and changed nothing (docs/experiments.md)."""
    GREW = 3.0
    """Factor by which the median norm has to have grown for a drift. A smaller factor would also meet norms that grow
    on the way to something better."""
    PLAINLY = 6.0
    """Standard errors by which the mean logarithm of the newest norms has to lie above those before; many, since a clip
    that is too low slows a healthy run."""
    SURE = 0.85
    """Confidence for outliers before noise is counted: the highest that confidences from outcomes may have
    (docs/experiments.md)."""
    GAIN = 0.02
    """Improvement of the objective that it forecasts, in the objective's unit; small, since it prevents and repairs
    nothing."""
    HORIZON = 40
    """Ticks in which the forecast is judged: long enough for outliers that come three times in 60 to come again."""

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(CLIP, SCALE)
        norms = [norm for _, norm in window.surviving_series(NORM, after=since, last=self.WINDOW)]
        if len(norms) < self.WINDOW or not all(math.isfinite(norm) and norm > 0 for norm in norms):
            return None
        return self._outliers(window, norms) or self._drift(window, norms)

    def _outliers(self, window: Window, norms: list[float]) -> Vote | None:
        middle = median(norms)
        above = [norm for norm in norms if norm > self.OUTLIER * middle]
        if not self.OFTEN <= len(above) <= self.FEW * len(norms):
            return None  # where a third is so large, the median is that of steps in which nothing was to be learnt
        why = f"{len(above)} of {len(norms)} gradients were above {self.OUTLIER:g} times the median of {middle:.3g}"
        target = objective(window.run).name
        sure = confidence(window, hit_rate=self.SURE, target=target, gain=self.GAIN, horizon=self.HORIZON)
        return self._tighten(window, 1.5 * quantile(norms, 0.9), why, "grad_norm_spike", sure)

    def _drift(self, window: Window, norms: list[float]) -> Vote | None:
        logs = [math.log(norm) for norm in norms]
        shift = newest(norms, self.LATELY)
        before, now = median(shift.before), median(shift.now)
        if now < self.GREW * before or rise(logs, self.LATELY) < self.PLAINLY:
            return None
        target = objective(window.run)
        sign = -signed(target, 1.0)
        values = [sign * value for _, value in window.surviving_series(target.name, last=self.WINDOW)]
        if rise(values, self.LATELY) < 2:
            return None  # larger gradients on the way to something better are no fault
        why = f"the norm of the gradient grew from {before:.3g} to {now:.3g}, and {target.name} got worse"
        return self._tighten(window, quantile(shift.before, 0.9), why, "grad_norm_growth", needs_second(window.run))

    def _tighten(self, window: Window, clip: float, why: str, symptom: str, sure: float) -> Vote | None:
        """None where the clip that there is holds them already, or as good as: a little less changes nothing but the
        log."""
        knob = window.knobs[CLIP]
        lowered = knob.bounded(clip)
        if lowered > knob.number / self.MATTERS:
            return None
        target = objective(window.run)
        return window.propose(
            CLIP, lowered, confidence=sure, why=f"{why}: {CLIP} {knob.number:.3g} → {lowered:.3g}",
            target=target.name, expected_change=signed(target, self.GAIN), horizon=self.HORIZON,
            evidence=(f"symptom:{symptom}",),
        )  # fmt: skip
