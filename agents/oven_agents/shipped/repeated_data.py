"""Skips data that the run has read before."""

from __future__ import annotations

from statistics import fmean, median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import confidence
from oven_agents.stats.level_shift import newest
from oven_agents.stats.objective import held_out, objective, signed
from oven_core.protocol.messages import Vote

SKIP, REPEATED = "data.skip", "data/repeated"


class RepeatedData(Agent):
    """Signals: nearly all rows of the last batches were read before, in a run that read new ones until then. That is a
    stretch of data that occurs twice: a shard listed again, or a resume that started from the beginning.

    Actions: proposes to skip PASSED batches. Repeated data teach little, and less each time (Muennighoff et al. 2023,
    arXiv 2305.16264: up to four passes cost nearly nothing, many more bring nothing). So the agent is confident that
    skipping does no harm, but not that it helps much.

    False alarms: none on data that are read once, where the gauge is 0 whatever the noise. A run that reaches the end
    of its data and starts again looks the same: one skip, which costs nothing there either. If the rows are still known
    afterwards, the agent is silent.

    Limits: it knows rows by their hash, so near-duplicates are new to it.
    """

    needs = (REPEATED,)
    moves = (SKIP,)
    speciality = (SKIP,)
    options = dict.fromkeys(("most", "few", "sure"), SHARE)

    STEPS = 5
    """Newest steps for the mean share of repeated rows. A batch or two of a small shard may repeat by chance."""
    MOST = 0.5
    """Share of the newest rows, 0 to 1, that must be known. A stretch may start inside a batch."""
    FEW = 0.1
    """Median share of repeated rows before STEPS, 0 to 1, above which the data are meant to repeat."""
    REFERENCE = 40
    """Earlier steps that say what is usual, and ticks after a skip without another proposal."""
    PASSED = 100
    """Batches to skip. Too few leave the run in the stretch, too many cost new data. PaLM skipped 200 to 500 in a far
    longer run (oven_agents.shipped.divergence)."""
    SURE = 0.95
    """Confidence before noise is counted: skipping rows that were read does no harm."""
    GAIN = 0.02
    """Forecast gain of the target, in its unit; small, because repeated rows teach little and seldom harm."""
    HORIZON = 60
    """Ticks in which the forecast is judged: many, because the gain comes from the data that are read instead."""

    def vote(self, window: Window) -> Vote | None:
        shares = [share for _, share in window.surviving_series(REPEATED, last=self.REFERENCE + self.STEPS)]
        shift = newest(shares, self.STEPS)
        before, now = shift.before, shift.now
        if len(before) < self.STEPS or median(before) > self.FEW or fmean(now) < self.MOST:
            return None
        if window.applied(SKIP) and window.tick < window.last_change_tick(SKIP) + self.REFERENCE:
            return None
        target = held_out(window.run) or objective(window.run)
        why = (
            f"{fmean(now):.0%} of the rows of the last {self.STEPS} steps were read before, {median(before):.0%} until "
            f"then: past {self.PASSED} batches"
        )
        sure = confidence(window, hit_rate=self.SURE, target=target.name, gain=self.GAIN, horizon=self.HORIZON)
        return window.propose(
            SKIP, float(self.PASSED), confidence=sure, why=why, target=target.name,
            expected_change=signed(target, self.GAIN), horizon=self.HORIZON, evidence=("symptom:data_repeated",),
        )  # fmt: skip
