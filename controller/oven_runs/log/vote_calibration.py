"""Measure how well the probabilities claimed in agents' votes match the outcomes of the changes.

A vote's confidence is the probability that the change beats doing nothing, which means a gain above 0. A target that
stopped being finite counts as a failure, one that is finite again as a success. `Outcome.beat`, 0 to 1, is the
probability y that this happened, given the noise. (Reputations also depend on how far the gain exceeds noise and half
of the forecast; see `mesh/reputation.py`.) The probability p is the confidence of `propose` and `for`, 1 minus the
confidence of `against`, and at least 0.5 for the side that the vote took. Votes on changes that were not applied or not
scored do not count.

Brier 1950, "Verification of forecasts expressed in terms of probability"; the table is the reliability diagram's
(Murphy & Winkler 1977, "Reliability of subjective probability forecasts of precipitation and temperature").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oven_core.mesh.measurements import mean
from oven_core.mesh.reputation import brier, claimed_probability
from oven_core.protocol.messages import Outcome

BINS = 10


@dataclass(frozen=True, slots=True)
class Claim:
    """A vote on a scored change: the claimed probability p, and the probability y that it came true, both 0 to 1."""

    agent: str
    p: float
    y: float


@dataclass(frozen=True, slots=True)
class Bin:
    """The number and means of the claims with low ≤ p < high (in the last bin: ≤ high)."""

    low: float
    high: float
    count: int
    p: float
    y: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Brier scores and the reliability diagram of a set of claims. The scores are None if it is empty."""

    count: int
    brier: float | None
    constant: float | None
    """The mean y: the constant probability with the best score, which is only known afterwards."""
    constant_brier: float | None
    bins: tuple[Bin, ...]
    """Bins that have claims, from the lowest p on."""


def claims(outcomes: Iterable[Outcome]) -> list[Claim]:
    """Return the claims about scored outcomes in the same order, including shadow agents' claims."""
    return [
        Claim(line.agent, claimed_probability(line.stance, line.confidence), outcome.beat)
        for outcome in outcomes
        if outcome.scored and outcome.beat is not None
        for line in outcome.lines
    ]


def calibration(claims: Sequence[Claim]) -> Calibration:
    """Return the calibration of these claims."""
    if not claims:
        return Calibration(0, None, None, None, ())
    constant = mean([claim.y for claim in claims])
    by_bin: dict[int, list[Claim]] = {}
    for claim in claims:
        by_bin.setdefault(min(int(claim.p * BINS), BINS - 1), []).append(claim)
    return Calibration(
        count=len(claims),
        brier=mean([brier(claim.p, claim.y) for claim in claims]),
        constant=constant,
        constant_brier=mean([brier(constant, claim.y) for claim in claims]),
        bins=tuple(_bin(number, members) for number, members in sorted(by_bin.items())),
    )


def by_agent(claims: Iterable[Claim]) -> dict[str, Calibration]:
    """Return the calibration of each agent, in the order of their names."""
    by_name: dict[str, list[Claim]] = {}
    for claim in claims:
        by_name.setdefault(claim.agent, []).append(claim)
    return {agent: calibration(by_name[agent]) for agent in sorted(by_name)}


def _bin(number: int, members: Sequence[Claim]) -> Bin:
    p, y = mean([claim.p for claim in members]), mean([claim.y for claim in members])
    return Bin(number / BINS, (number + 1) / BINS, len(members), p, y)
