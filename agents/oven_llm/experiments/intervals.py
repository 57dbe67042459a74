"""Intervals of means over questions that come in documents: questions of one document are alike, so that documents are
drawn, not questions (percentile bootstrap over clusters; Miller 2024, arXiv 2411.00640). Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DRAWS: Final = 2000
"""Bootstrap samples: the ends of a 95 % interval then vary by a few hundredths of its width."""
LEAST_CLUSTERS: Final = 5
"""Of fewer documents the drawn means are so few that the interval would be far too narrow."""


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95 % interval, which are absent where there are too few documents."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" [{self.low:.3f}, {self.high:.3f}]" if self.low is not None else "")


def clustered(values: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Interval:
    """Of `values`, each in the cluster of its place. Raises ValueError without values, and for unlike lengths."""
    if not values:
        raise ValueError("there are no values")
    sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for value, cluster in zip(values, clusters, strict=True):
        total, count = sums[cluster]
        sums[cluster] = total + value, count + 1
    mean = sum(values) / len(values)
    groups = list(sums.values())
    if len(groups) < LEAST_CLUSTERS:
        return Interval(mean, None, None)
    draw = random.Random(seed)
    means = sorted(_mean(draw.choices(groups, k=len(groups))) for _ in range(DRAWS))
    at = round(0.025 * DRAWS)
    return Interval(mean, means[at], means[-at - 1])


def _mean(groups: Sequence[tuple[float, int]]) -> float:
    return sum(total for total, _ in groups) / sum(count for _, count in groups)
