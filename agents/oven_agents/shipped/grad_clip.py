"""Sets the gradient clip so that it only affects outliers."""

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
    """Signals: on the norm before clipping, recurring outliers: three of the last 60 norms above five times their
    median, and a clip that lets them pass. And drift: a norm that grew by a factor of three or more, well beyond its
    noise, while the objective got worse.

    Actions: for outliers the clip goes to one and a half times the 0.9 quantile. That is clipping against the
    gradients' own recent norms (ZClip, Kumar et al. 2025, arXiv 2504.02507; AdaGC, Wang et al. 2025, arXiv 2502.11034),
    at an agent's pace. It prevents the next outlier; the one that passed is left to divergence (a clip lowered
    afterwards undid 0.00 of the harm). For a drift the clip goes to the earlier 0.9 quantile, so that steps stay as
    short as before. This is a rule of thumb and needs a second agent: a quarter of twelve outcomes in the gym beat
    doing nothing.

    False alarms: with a log-normal spread of 0.5, a norm is five times the median with probability 0.0006, and three of
    60 with 10⁻⁵. The drift is a mean of 20 logarithms above 6 standard errors.

    Limits: under Adam a clip only changes the length of steps until the moments adapt, so a steady drift is slowed and
    not cured.
    """

    needs = (NORM,)
    moves = (CLIP,)
    speciality = (CLIP,)
    options = dict.fromkeys(("few", "sure"), SHARE)

    WINDOW = 60
    """Number of newest ticks to read norms from. The false alarm rates above apply to this value."""
    LATELY = 20
    """Newest ticks for detecting a drift. They are compared with the rest of WINDOW."""
    OUTLIER = 5.0
    """Multiple of the median from which a norm is an outlier: 0.0006 of norms with a log-normal spread of 0.5."""
    OFTEN = 3
    """Minimum outliers within WINDOW. Fewer occur by chance, and the divergence agent handles a single one."""
    FEW = 0.15
    """Share of all norms, 0 to 1, above which they are not outliers, because the median is that of steps with no
    signal."""
    MATTERS = 2.0
    """Factor by which a proposal must lower the clip. Smaller changes (1 to 0.8) changed nothing in any run."""
    GREW = 3.0
    """Growth of the median norm that makes a drift. Norms may grow less on the way to something better."""
    PLAINLY = 6.0
    """Standard errors by which the mean logarithm of the newest norms must exceed the earlier one. Many, because a clip
    that is too low slows a healthy run."""
    SURE = 0.85
    """Confidence for outliers before noise is counted: the highest value for confidences from outcomes."""
    GAIN = 0.02
    """Forecast gain of the objective, in its unit; small, because the change prevents and repairs nothing."""
    HORIZON = 40
    """Ticks until the forecast is judged: long enough for outliers that occur three times in 60 to recur."""

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
            return None  # if a third are so large, the median comes from steps with nothing to learn
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
        """Propose a lower clip. None if the present one already clips the outliers, or nearly does."""
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
