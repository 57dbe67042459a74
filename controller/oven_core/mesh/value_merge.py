"""Group votes into sides, and merge the values of one side into their weighted median on the actuator's scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oven_core.mesh.actuator_values import check_bounds, direction, number, rounded, shares, variation
from oven_core.protocol.evidence import Signal
from oven_core.protocol.messages import ActuatorSpec, TallyLine, Value

WEIGHT_TOLERANCE = 1e-9
"""Relative difference below which sums of weights count as equal. Weights are rounded to nine digits."""


@dataclass(frozen=True, slots=True)
class WeightedVote:
    """A vote for a change, with its weight."""

    agent: str
    value: Value
    weight: float
    line: TallyLine
    decides_alone: bool = False
    """Whether the agent's proposal alone is a quorum, by a grant."""
    signal: Signal | None = None
    """The measurement on which the vote rests, if it names one."""


def group_by_side(spec: ActuatorSpec, before: Value, votes: list[WeightedVote]) -> dict[str, list[WeightedVote]]:
    """Group votes into sides: by direction for a scalar or simplex, by value for a choice, one side for an action."""
    sides: dict[str, list[WeightedVote]] = {}
    centre = _compute_centre(spec, votes) if spec.kind == "simplex" else {}
    for vote in votes:
        side: str
        if spec.kind == "scalar":
            side = direction(before, vote.value)
        elif spec.kind == "choice":
            side = f"={vote.value}"
        elif spec.kind == "simplex":
            side = _find_simplex_side(shares(before), shares(vote.value), centre)
        else:
            side = "set"
        sides.setdefault(side, []).append(vote)
    return sides


def heaviest_side(sides: dict[str, list[WeightedVote]]) -> tuple[str, list[WeightedVote]]:
    """Return the name and the votes of the side with the most weight. On a tie, the last side by name wins."""
    weights = {name: math.fsum(vote.weight for vote in side) for name, side in sides.items()}
    winner = max(sides, key=lambda name: (weights[name], name))
    return winner, sides[winner]


def _find_simplex_side(before: dict[str, float], value: dict[str, float], centre: dict[str, float]) -> str:
    """Return whether a vote moves `towards` the common centre of the votes or `away` from it, or `keep`.

    The tally never lets `away` win. Return `set` if the effective value or the centre is unknown."""
    if not before or not centre:
        return "set"
    if value == before:
        return "keep"
    dot = math.fsum((value[name] - before[name]) * (centre[name] - before[name]) for name in before)
    return "towards" if dot > 0 else "away"


def merge_values(spec: ActuatorSpec, side: list[WeightedVote]) -> Value:
    """Return the merged value of a side, or None for an action without an argument."""
    if spec.kind == "choice":
        return side[0].value
    if spec.kind == "simplex":
        centre: dict[str, float] = {name: rounded(share) for name, share in _compute_centre(spec, side).items()}
        if check_bounds(spec, centre) is None:
            return centre
        # The centre may be outside the bounds, but no proposal is. So use the proposal nearest to the centre.
        proposals = [shares(vote.value) for vote in side if vote.weight > 0]
        return min(proposals, key=lambda value: (variation(value, centre), tuple(value.values())))
    weighted_values = [(value, vote.weight) for vote in side if (value := number(vote.value)) is not None]
    if not any(weight > 0 for _, weight in weighted_values):
        return None
    median = rounded(weighted_median(weighted_values, spec.scale, lower=spec.kind == "action"))
    values = [value for value, _ in weighted_values]
    return min(max(median, min(values)), max(values))  # rounding may have moved the median out of the values' range


def _compute_centre(spec: ActuatorSpec, votes: list[WeightedVote]) -> dict[str, float]:
    """Return the normalised medians of a simplex's components, or an empty dict if no vote has weight."""
    if not any(vote.weight > 0 for vote in votes):
        return {}
    medians = {
        name: weighted_median([(shares(vote.value)[name], vote.weight) for vote in votes]) for name in spec.choices
    }
    total = math.fsum(medians.values())
    if total <= 0:  # each vote favours another component, so there is no meaningful centre
        heaviest_vote = max(votes, key=lambda vote: (vote.weight, tuple(shares(vote.value).values())))
        return shares(heaviest_vote.value)
    return {name: share / total for name, share in medians.items()}


def weighted_median(pairs: Sequence[tuple[float, float]], scale: str = "linear", lower: bool = False) -> float:
    """Return the median of (value, weight) pairs whose total weight is positive.

    If two values divide the weight evenly, return their mean on the scale (arithmetic or geometric). With `lower`,
    return the smaller value instead."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    total = math.fsum(weight for _, weight in ordered)
    weights_so_far: list[float] = []
    for index, (value, weight) in enumerate(ordered):
        weights_so_far.append(weight)
        twice_the_weight = 2 * math.fsum(weights_so_far)
        if abs(twice_the_weight - total) <= WEIGHT_TOLERANCE * total and not lower and index + 1 < len(ordered):
            next_value = ordered[index + 1][0]
            return math.sqrt(value) * math.sqrt(next_value) if scale == "log" else value / 2 + next_value / 2
        if twice_the_weight >= total * (1 - WEIGHT_TOLERANCE):
            return value
    raise ValueError("a weighted median needs at least one value with a weight above 0")
