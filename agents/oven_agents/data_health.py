"""Passes over data that the run has read before."""

from __future__ import annotations

from statistics import fmean, median

from oven_agents.agent import Agent
from oven_agents.objective import held_out, objective, signed
from oven_agents.odds import odds
from oven_agents.window import Window
from oven_controller.messages import Vote

SKIP, REPEATED = "data.skip", "data/repeated"


class DataHealth(Agent):
    """A batch whose rows were nearly all read before, in a run that until then read new ones, is a stretch of the data
    that stands in it twice (a shard listed again, a resume that began anew). It proposes to pass over PASSED batches:
    what is read again teaches little and wears off (Muennighoff et al. 2023, arXiv 2305.16264: up to four passes cost
    nearly nothing, many more bring nothing; so it is sure that skipping does no harm, and not that it helps much).

    False alarms: none on data that are read once, where the gauge is 0 whatever the noise. A run that has come to the
    end of its data and begins again looks the same: one skip, which costs nothing there either, and if the rows are
    still known afterwards, it has nothing more to say.

    Limits: it knows rows by their hash, so that near-duplicates are new to it.
    """

    needs = (REPEATED,)
    moves = (SKIP,)
    speciality = (SKIP,)

    STEPS = 5
    MOST, FEW = 0.5, 0.1
    REFERENCE = 40
    PASSED = 100
    SURE, GAIN, HORIZON = 0.95, 0.02, 60

    def vote(self, window: Window) -> Vote | None:
        shares = [share for _, share in window.kept(REPEATED, last=self.REFERENCE + self.STEPS)]
        before, now = shares[: -self.STEPS], shares[-self.STEPS :]
        if len(before) < self.STEPS or median(before) > self.FEW or fmean(now) < self.MOST:
            return None
        if window.applied(SKIP) and window.tick < window.settled_after(SKIP) + self.REFERENCE:
            return None
        target = held_out(window.run) or objective(window.run)
        why = (
            f"{fmean(now):.0%} of the rows of the last {self.STEPS} steps were read before, {median(before):.0%} until "
            f"then: past {self.PASSED} batches"
        )
        sure = odds(window, self.SURE, target.name, self.GAIN, self.HORIZON)
        return window.propose(
            SKIP, float(self.PASSED), confidence=sure, why=why, target=target.name,
            expected_change=signed(target, self.GAIN), horizon=self.HORIZON, evidence=("symptom:data_repeated",),
        )  # fmt: skip
