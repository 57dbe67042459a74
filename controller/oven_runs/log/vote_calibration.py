"""Calibration of agents' votes: the probabilities that they stated against the changes' outcomes.

The event is what a confidence is the probability of, that a change beat doing nothing: its gain is above 0. A target
that stopped being finite is a failure, one that is finite again a success. `Outcome.beat`, 0 to 1, is taken as the
probability y that the event happened, given the noise. (Reputations move on more: on how far the gain is beyond noise
and half of what was promised, `mesh/reputation.py`.) The probability p is what the vote claimed: its confidence for
`propose` and `for`, 1 less it for `against`, and at least even odds for the side that was taken. Votes on changes that
were not carried out, or whose outcome was not scored, say nothing here.

Brier 1950, "Verification of forecasts expressed in terms of probability"; the table is the reliability diagram's
(Murphy & Winkler 1977, "Reliability of subjective probability forecasts of precipitation and temperature").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oven_core.mesh.measurements import mean
from oven_core.mesh.reputation import brier, claimed
from oven_core.protocol.messages import Outcome

BINS = 10


@dataclass(frozen=True, slots=True)
class Claim:
    """One vote whose change was judged: the probability given, and that of its having come true, both 0 to 1."""

    agent: str
    p: float
    y: float


@dataclass(frozen=True, slots=True)
class Bin:
    """The claims with low ≤ p < high (of the last: ≤ high): how many, and their means."""

    low: float
    high: float
    count: int
    p: float
    y: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """`constant` is the one probability that would have scored best, the mean y: known only afterwards, so who
    beats it tells good changes from bad ones. None where there is no claim."""

    count: int
    brier: float | None
    constant: float | None
    constant_brier: float | None
    bins: tuple[Bin, ...]
    """Those with a claim in them, from the lowest p on."""


def claims(outcomes: Iterable[Outcome]) -> list[Claim]:
    """Of outcomes that were scored, in their order; shadow agents' too."""
    return [
        Claim(line.agent, claimed(line.stance, line.confidence), outcome.beat)
        for outcome in outcomes
        if outcome.scored and outcome.beat is not None
        for line in outcome.lines
    ]


def calibration(of: Sequence[Claim]) -> Calibration:
    if not of:
        return Calibration(0, None, None, None, ())
    constant = mean([claim.y for claim in of])
    return Calibration(
        count=len(of),
        brier=mean([brier(claim.p, claim.y) for claim in of]),
        constant=constant,
        constant_brier=mean([brier(constant, claim.y) for claim in of]),
        bins=_bins(of),
    )


def by_agent(of: Iterable[Claim]) -> dict[str, Calibration]:
    """In the order of their names."""
    found: dict[str, list[Claim]] = {}
    for claim in of:
        found.setdefault(claim.agent, []).append(claim)
    return {agent: calibration(found[agent]) for agent in sorted(found)}


def _bins(of: Sequence[Claim]) -> tuple[Bin, ...]:
    within: dict[int, list[Claim]] = {}
    for claim in of:
        within.setdefault(min(int(claim.p * BINS), BINS - 1), []).append(claim)
    return tuple(
        Bin(
            low=at / BINS,
            high=(at + 1) / BINS,
            count=len(inside),
            p=mean([claim.p for claim in inside]),
            y=mean([claim.y for claim in inside]),
        )
        for at, inside in sorted(within.items())
    )
