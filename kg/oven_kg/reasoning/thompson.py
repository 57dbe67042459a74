"""Draws from Beta distributions by a seed: the same seed and key give the same value, in whatever order they are drawn.

Thompson sampling (Thompson 1933; Chapelle and Li 2011): who acts by a draw from what is known, and not by its mean,
tries what is less certain about as often as it is the best. A Beta variable is X / (X + Y) of two gamma variables, each
by Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

LEAST = 1e-9
"""Of a Beta distribution's two counts: below it draws are 0 or 1 to the last digit."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of everything that is uncertain."""

    seed: str

    def beta(self, key: str, mean: float, n: float) -> float:
        """Of the Beta distribution with this mean, worth `n` observations. A mean of 0 or 1 is certain, and so is one
        that hardly differs from it (LEAST)."""
        if min(mean, 1 - mean) * n < LEAST:
            return mean
        uniforms = self._uniforms(key)
        good, bad = _gamma(mean * n, uniforms), _gamma((1 - mean) * n, uniforms)
        return good / (good + bad) if good + bad > 0 else mean

    def _uniforms(self, key: str) -> Iterator[float]:
        """Within 0 and 1, neither of them included."""
        count = 0
        while True:
            block = hashlib.sha256(f"{self.seed}\0{key}\0{count}".encode()).digest()
            for at in range(0, len(block), 8):
                yield ((int.from_bytes(block[at : at + 8], "big") >> 11) + 0.5) / 2**53
            count += 1


def _gamma(shape: float, uniforms: Iterator[float]) -> float:
    """Of the gamma distribution with scale 1."""
    if shape < 1:
        return _gamma(shape + 1, uniforms) * math.pow(next(uniforms), 1 / shape)
    d = shape - 1 / 3
    while True:
        x = _normal(uniforms)
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(next(uniforms)) < 0.5 * x * x + d * (1 - v + math.log(v)):
            return d * v


def _normal(uniforms: Iterator[float]) -> float:
    """Box and Muller's."""
    return math.sqrt(-2 * math.log(next(uniforms))) * math.cos(2 * math.pi * next(uniforms))
