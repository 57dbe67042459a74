"""Whether scores follow something that they should not, such as the place in which an answer was shown. Pure.

Each group gives one correlation, over its completions. Without a bias its mean is 0 and its variance 1/(n − 1) for n
completions, whatever the scores are, since places are drawn at random. The sum over groups S with variance V then has
the e-value of a normal mixture (Robbins 1970; Howard et al. 2021, arXiv 1810.08240, eq. 14)

    √(ρ / (V + ρ)) · exp(S² / (2 (V + ρ)))

which exceeds 1/α with probability at most α in a whole run, however long it is and however often one looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

ALPHA: Final = 0.001
"""The chance of a false alarm of one test on one judge in a whole run: a committee of five with two tests each then
raises one in a hundred runs."""
TUNED: Final = 10.0
"""ρ, the V for which the test is tuned: 70 groups of eight completions."""
SMALLEST: Final = 0.1
"""A mean correlation that is worth an alarm: in a long run the test sees ones that move no advantage."""


class BiasTest:
    """`smallest`: the mean correlation below which there is no alarm however sure it is."""

    def __init__(self, smallest: float = SMALLEST) -> None:
        self._smallest = smallest
        self._sum = self._variance = 0.0
        self.groups = 0

    def saw(self, scores: Sequence[float], followed: Sequence[float]) -> None:
        """One group: its scores, and what they should not follow. Nothing is learnt where either is constant."""
        found = correlation(scores, followed)
        if found is not None:
            self._sum += found
            self._variance += 1 / (len(scores) - 1)
            self.groups += 1

    @property
    def mean(self) -> float | None:
        """The mean correlation; None before the first group."""
        return self._sum / self.groups if self.groups else None

    @property
    def alarm(self) -> bool:
        """Whether the bias is sure, and large enough to matter."""
        mean = self.mean
        return mean is not None and abs(mean) >= self._smallest and self._evidence() >= -math.log(ALPHA)

    def _evidence(self) -> float:
        """The logarithm of the e-value."""
        wide = self._variance + TUNED
        return self._sum**2 / (2 * wide) - 0.5 * math.log(wide / TUNED)


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """None where either is constant."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    spread_a = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a))
    spread_b = math.sqrt(math.fsum((y - mean_b) ** 2 for y in b))
    if min(spread_a, spread_b) < 1e-9:
        return None
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, together / (spread_a * spread_b)))
