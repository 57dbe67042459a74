"""Skips data that the run has read before."""

from __future__ import annotations

from statistics import fmean, median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import estimate_confidence
from oven_agents.stats.level_shift import shift_of_newest
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_core.protocol.messages import Vote

SKIP, REPEATED = "data.skip", "data/repeated"


class RepeatedData(Agent):
    """Signals: most rows of the last batches were read before, in a run that had only read new rows. So a part of the
    data occurs twice: a shard is listed twice, or training resumed from the beginning of the data.

    Actions: proposes to skip SKIPPED_BATCHES batches. Repeated data teach little, and less each time (Muennighoff et
    al. 2023, arXiv 2305.16264: up to four passes are nearly as good as new data, many more add nothing). So the agent
    is confident that a skip does no harm, but not that it helps much.

    False alarms: none on data that are read once, because their share of repeated rows is always 0. A run that reaches
    the end of its data and starts again looks the same. Such a run gets one skip, which costs nothing. If the rows
    after the skip were also read before, the agent is silent.

    Limits: the agent recognises rows by their hash, so near-duplicates count as new.
    """

    needs = (REPEATED,)
    moves = (SKIP,)
    options = dict.fromkeys(("min_repeated", "max_usual_repeated", "confidence"), SHARE_BOUNDS)

    RECENT_STEPS = 5
    """Number of newest steps for the mean share of repeated rows. One or two batches may repeat by chance."""
    MIN_REPEATED = 0.5
    """Minimum share of repeated rows in the newest steps, 0 to 1. The repetition may start inside a batch."""
    MAX_USUAL_REPEATED = 0.1
    """Maximum median share of repeated rows before RECENT_STEPS, 0 to 1. Above it, the data repeat on purpose."""
    REFERENCE = 40
    """Number of earlier steps for the usual share, and of ticks after a skip without another proposal."""
    SKIPPED_BATCHES = 100
    """Number of batches to skip. Too few leave the run in the repeated data, and too many cost new data."""
    CONFIDENCE = 0.95
    """Confidence before noise is taken into account. It is high because skipping repeated rows does no harm."""
    GAIN = 0.02
    """Forecast gain of the target, in its unit. It is small because repeated rows teach little and seldom harm."""
    HORIZON = 60
    """Number of ticks after which the forecast is judged. The gain from new data comes slowly."""

    def vote(self, window: Window) -> Vote | None:
        shares = [share for _, share in window.surviving_series(REPEATED, last=self.REFERENCE + self.RECENT_STEPS)]
        shift = shift_of_newest(shares, self.RECENT_STEPS)
        before, now = shift.before, shift.now
        if (
            len(before) < self.RECENT_STEPS
            or median(before) > self.MAX_USUAL_REPEATED
            or fmean(now) < self.MIN_REPEATED
        ):
            return None
        if window.applied(SKIP) and window.tick < window.last_change_tick(SKIP) + self.REFERENCE:
            return None
        target = held_out_metric(window.run) or objective(window.run)
        why = (
            f"{fmean(now):.0%} of the rows in the last {self.RECENT_STEPS} steps are repeated, up from "
            f"{median(before):.0%}: skip {self.SKIPPED_BATCHES} batches"
        )
        confidence = estimate_confidence(
            window, hit_rate=self.CONFIDENCE, target=target.name, gain=self.GAIN, horizon=self.HORIZON
        )
        return window.propose(
            SKIP, float(self.SKIPPED_BATCHES), confidence=confidence, why=why, target=target.name,
            expected_change=apply_sign(target, self.GAIN), horizon=self.HORIZON, evidence=("symptom:data_repeated",),
        )  # fmt: skip
