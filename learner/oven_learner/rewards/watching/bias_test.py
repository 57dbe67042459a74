"""Test whether scores follow something that they should not, such as the position of an answer. Pure functions.

Each group yields one correlation over its completions. Without a bias its mean is 0 and its variance 1/(n − 1) for n
completions, whatever the scores are, because positions are random. The sum over groups S with variance V then has the
e-value of a normal mixture (Robbins 1970; Howard et al. 2021, arXiv 1810.08240, eq. 14)

    √(ρ / (V + ρ)) · exp(S² / (2 (V + ρ)))

which exceeds 1/α with probability at most α in a whole run, for any length and any number of looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

ALPHA: Final = 0.001
"""False-alarm probability of one test on one judge per run. A committee of five with two tests each then has one false
alarm in a hundred runs."""
TUNED: Final = 10.0
"""ρ, the V for which the test is tuned: 70 groups of eight completions."""
SMALLEST: Final = 0.1
"""Smallest mean correlation for an alarm. Long runs detect smaller ones that change no advantage."""


class BiasTest:
    """A sequential test. `smallest` is the smallest mean correlation that can raise an alarm."""

    def __init__(self, smallest: float = SMALLEST) -> None:
        self._smallest = smallest
        self._sum = self._variance = 0.0
        self.groups = 0

    def saw(self, scores: Sequence[float], followed: Sequence[float]) -> None:
        """Add one group: its scores, and the values that they should not follow. Ignored if either is constant."""
        measured = correlation(scores, followed)
        if measured is not None:
            self._sum += measured
            self._variance += 1 / (len(scores) - 1)
            self.groups += 1

    @property
    def mean(self) -> float | None:
        """The mean correlation; None before the first group."""
        return self._sum / self.groups if self.groups else None

    @property
    def alarm(self) -> bool:
        """Whether the bias is significant and large enough to matter."""
        mean = self.mean
        return mean is not None and abs(mean) >= self._smallest and self._evidence() >= -math.log(ALPHA)

    def _evidence(self) -> float:
        """Return the logarithm of the e-value."""
        wide = self._variance + TUNED
        return self._sum**2 / (2 * wide) - 0.5 * math.log(wide / TUNED)


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the correlation; None if either is constant."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    spread_a = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a))
    spread_b = math.sqrt(math.fsum((y - mean_b) ** 2 for y in b))
    if min(spread_a, spread_b) < 1e-9:
        return None
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, together / (spread_a * spread_b)))
