"""Sides of a ballot and their merged value: the weighted median on the actuator's own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oven_core.mesh.actuator_values import direction, number, outside, rounded, shares, variation
from oven_core.protocol.messages import ActuatorSpec, TallyLine, Value

TIE = 1e-9
"""Relative; weights carry nine digits."""


@dataclass(frozen=True, slots=True)
class WeightedVote:
    agent: str
    value: Value
    weight: float
    line: TallyLine
    specialist: bool = False  # a proposal of the actuator's own specialist


def sides_of(spec: ActuatorSpec, before: Value, votes: list[WeightedVote]) -> dict[str, list[WeightedVote]]:
    """Who pulls the same way: up or down for a scalar, each value of a choice, one side for an action."""
    sides: dict[str, list[WeightedVote]] = {}
    centre = _centre(spec, votes) if spec.kind == "simplex" else {}
    for vote in votes:
        side: str
        if spec.kind == "scalar":
            side = direction(before, vote.value)
        elif spec.kind == "choice":
            side = f"={vote.value}"
        elif spec.kind == "simplex":
            side = _pull(shares(before), shares(vote.value), centre)
        else:
            side = "set"
        sides.setdefault(side, []).append(vote)
    return sides


def heaviest(sides: dict[str, list[WeightedVote]]) -> tuple[str, list[WeightedVote]]:
    """The side with the most weight, and of equals the last by name."""
    return max(sides.items(), key=lambda item: (math.fsum(vote.weight for vote in item[1]), item[0]))


def _pull(before: dict[str, float], value: dict[str, float], centre: dict[str, float]) -> str:
    """`towards` where everybody together wants to go, `away` from it (which can never win), or `keep`."""
    if not before or not centre:
        return "set"
    if value == before:
        return "keep"
    dot = math.fsum((value[name] - before[name]) * (centre[name] - before[name]) for name in before)
    return "towards" if dot > 0 else "away"


def merged(spec: ActuatorSpec, side: list[WeightedVote]) -> Value:
    if spec.kind == "choice":
        return side[0].value
    if spec.kind == "simplex":
        mean: dict[str, float] = {name: rounded(share) for name, share in _centre(spec, side).items()}
        if outside(spec, mean) is None:
            return mean
        # Component medians, renormalised, may leave the bounds; the nearest proposal never does.
        given = [shares(vote.value) for vote in side if vote.weight > 0]
        return min(given, key=lambda value: (variation(value, mean), tuple(value.values())))
    pairs = [(found, vote.weight) for vote in side if (found := number(vote.value)) is not None]
    if not any(weight > 0 for _, weight in pairs):
        return None  # an action whose supporters gave no argument
    value = rounded(weighted_median(pairs, spec.scale, lower=spec.kind == "action"))
    lowest, highest = min(pairs)[0], max(pairs)[0]
    return min(max(value, lowest), highest)


def _centre(spec: ActuatorSpec, votes: list[WeightedVote]) -> dict[str, float]:
    if not any(vote.weight > 0 for vote in votes):
        return {}
    medians = {
        name: weighted_median([(shares(vote.value)[name], vote.weight) for vote in votes]) for name in spec.choices
    }
    total = math.fsum(medians.values())
    if total <= 0:  # each wants another component: no middle that means anything
        heaviest = max(votes, key=lambda vote: (vote.weight, tuple(shares(vote.value).values())))
        return shares(heaviest.value)
    return {name: share / total for name, share in medians.items()}


def weighted_median(pairs: Sequence[tuple[float, float]], scale: str = "linear", lower: bool = False) -> float:
    """Of (value, weight) pairs with a positive total weight. Where the weight splits evenly between two values: their
    middle on the scale (arithmetic or geometric), or with `lower` the lesser one.
    """
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    total = math.fsum(weight for _, weight in ordered)
    reached: list[float] = []
    for at, (value, weight) in enumerate(ordered):
        reached.append(weight)
        half = 2 * math.fsum(reached)
        if abs(half - total) <= TIE * total and not lower and at + 1 < len(ordered):
            other = ordered[at + 1][0]
            return math.sqrt(value) * math.sqrt(other) if scale == "log" else value / 2 + other / 2
        if half >= total * (1 - TIE):
            return value
    raise ValueError("a weighted median needs at least one value with a weight above 0")
