"""How bad a case is: drawn from mild to severe, so that some cases need nothing and some are lost without help.

Families draw severity through these functions, by `rng.random()` alone, and anything else about a case (a seed, which
of two variants) by `rng.getrandbits`. So `At` can ask for the mild or the severe end of any family.
"""

from __future__ import annotations

from random import Random


def uniform(rng: Random, mild: float, severe: float) -> float:
    return mild + (severe - mild) * rng.random()


def log_uniform(rng: Random, mild: float, severe: float) -> float:
    """Between two positive numbers; `severe` may be the smaller one."""
    drawn: float = mild * (severe / mild) ** rng.random()
    return drawn


def whole(rng: Random, mild: int, severe: int) -> int:
    """A count, log-uniform."""
    return round(log_uniform(rng, mild, severe))


class At(Random):
    """Draws every severity at one quantile: 0 is the mild end, 1 the severe one. Seeds and variants go by `seed`."""

    def __init__(self, quantile: float, seed: int = 0) -> None:
        super().__init__(seed)
        self._quantile = quantile

    def random(self) -> float:
        return self._quantile
