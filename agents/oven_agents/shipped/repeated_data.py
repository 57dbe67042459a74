"""Passes over data that the run has read before."""

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
    """Signals: nearly all rows of the last batches were read before, in a run that until then read new ones. That is a
    stretch of the data that is in it twice: a shard listed again, or a resume that began from the start.

    Actions: it proposes to pass over PASSED batches. What is read again teaches little, and less each time (Muennighoff
    et al. 2023, arXiv 2305.16264: up to four passes cost nearly nothing, many more bring nothing); so it is sure that
    skipping does no harm, and not that it helps much.

    False alarms: none on data that are read once, where the gauge is 0 whatever the noise. A run that has come to the
    end of its data and begins again looks the same: one skip, which costs nothing there either; if the rows are still
    known afterwards, it has nothing more to say.

    Limits: it knows rows by their hash, so that near-duplicates are new to it.
    """

    needs = (REPEATED,)
    moves = (SKIP,)
    speciality = (SKIP,)
    options = dict.fromkeys(("most", "few", "sure"), SHARE)

    STEPS = 5
    """Newest steps whose rows are looked at, in the mean; a batch or two may repeat by chance of a small shard."""
    MOST = 0.5
    """Share of the newest rows that has to have been read before, 0 to 1: most of a batch, not all, since a stretch may
    begin inside one."""
    FEW = 0.1
    """Share of repeated rows before STEPS, in the median, above which the data are meant to repeat, 0 to 1."""
    REFERENCE = 40
    """Steps before the newest that say what is usual, and ticks after a skip in which it proposes no other."""
    PASSED = 100
    """Batches to pass over. Too few leave the run in the stretch, too many cost data that were not read; PaLM skipped
    200 to 500 in a far longer run (oven_agents.shipped.divergence)."""
    SURE = 0.95
    """Confidence before noise is counted: that skipping rows which were read does no harm follows from what they
    are."""
    GAIN = 0.02
    """Improvement of the target that it forecasts, in the target's unit; small, since repeated rows teach little and
    seldom harm."""
    HORIZON = 60
    """Ticks in which the forecast is judged: longer than elsewhere, since the gain comes with the data that are read
    instead."""

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
