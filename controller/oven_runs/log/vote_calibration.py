"""Measure how well the probabilities claimed in agents' votes match the outcomes of the changes.

A vote's confidence is the probability that the change beats doing nothing, which means a gain above 0. A target that
became non-finite counts as a failure, and one that became finite again as a success. `Outcome.beat`, 0 to 1, is the
probability y that the change was better, given the noise. (Reputations also depend on how far the gain exceeds noise
and half of the forecast; see `mesh/reputation.py`.)

The claimed probability p is the confidence of `propose` and `for`, and 1 minus the confidence of `against`. A
confidence below 0.5 counts as 0.5. Votes on changes that were not applied or not scored do not count.

Sources: Brier 1950, "Verification of forecasts expressed in terms of probability", and for the reliability diagram
Murphy & Winkler 1977, "Reliability of subjective probability forecasts of precipitation and temperature".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oven_core.mesh.measurements import mean
from oven_core.mesh.reputation import brier, claimed_probability
from oven_core.protocol.messages import Outcome

BINS = 10
"""Number of equally wide bins between probability 0 and 1."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A vote on a scored change: the claimed probability p that it helps, and the probability y that it did, 0 to 1."""

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
    """Brier scores and the reliability diagram of a set of claims. The scores are None if there are no claims."""

    count: int
    brier: float | None
    constant: float | None
    """The mean y. It is the constant probability with the best score, which is known only afterwards."""
    constant_brier: float | None
    bins: tuple[Bin, ...]
    """Bins that contain claims, sorted by p."""


def collect_claims(outcomes: Iterable[Outcome]) -> list[Claim]:
    """Return the claims about scored outcomes in the same order, including claims of shadow agents."""
    return [
        Claim(line.agent, claimed_probability(line.stance, line.confidence), outcome.beat)
        for outcome in outcomes
        if outcome.scored and outcome.beat is not None
        for line in outcome.lines
    ]


def calibrate(claims: Sequence[Claim]) -> Calibration:
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
        bins=tuple(_make_bin(number, bin_claims) for number, bin_claims in sorted(by_bin.items())),
    )


def calibrate_by_agent(claims: Iterable[Claim]) -> dict[str, Calibration]:
    """Return the calibration of each agent, sorted by name."""
    claims_by_agent: dict[str, list[Claim]] = {}
    for claim in claims:
        claims_by_agent.setdefault(claim.agent, []).append(claim)
    return {agent: calibrate(claims_by_agent[agent]) for agent in sorted(claims_by_agent)}


def _make_bin(number: int, claims: Sequence[Claim]) -> Bin:
    p, y = mean([claim.p for claim in claims]), mean([claim.y for claim in claims])
    return Bin(number / BINS, (number + 1) / BINS, len(claims), p, y)
