"""What is drawn by a seed: a fault's parameters, as its class declares them, and generators of random tensors.

    weight: float = log_uniform(0.1, 1)

Parameters that only say how bad a fault is take one `rng.random()` each, so that `At` can ask for the mild or the
severe end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, field
from itertools import count as numbers
from random import Random
from typing import Any, TypeVar

import torch

T = TypeVar("T")
DRAW, ORDER = "draw", "order"
_declared = numbers()


def drawn(draw: Callable[[Random], T]) -> T:
    """Whatever the function draws."""
    made: T = field(metadata={DRAW: draw, ORDER: next(_declared)})
    return made


def uniform(mild: float, severe: float) -> float:
    return drawn(lambda rng: rng.uniform(mild, severe))


def log_uniform(mild: float, severe: float) -> float:
    """Between two positive numbers; `severe` may be the smaller one."""
    return drawn(lambda rng: _log_uniform(rng, mild, severe))


def whole(mild: int, severe: int) -> int:
    """A count, log-uniform."""
    return drawn(lambda rng: round(_log_uniform(rng, mild, severe)))


def log10_uniform(low: float, high: float, times: float = 1.0) -> float:
    """`times` · 10^u, with u uniform between the two."""
    return drawn(lambda rng: times * _power(rng, low, high))


def count(least: int, decades: float) -> int:
    """A count from `least` up to so many powers of ten more, log-uniform."""
    return drawn(lambda rng: round(least * _power(rng, 0.0, decades)))


def integer(low: int, high: int) -> int:
    """Uniform, both ends included."""
    return drawn(lambda rng: rng.randint(low, high))


def choice(options: Sequence[T]) -> T:
    """One of them; what stands there twice is drawn twice as often."""
    return drawn(lambda rng: rng.choice(options))


def chance(probability: float) -> bool:
    return drawn(lambda rng: rng.random() < probability)


def random_seed() -> int:
    return drawn(lambda rng: rng.getrandbits(32))


def declared(parameters: Iterable[Field[Any]], rng: Random) -> dict[str, Any]:
    """A value for each field that is a parameter, by its name; they are drawn in the order of their declarations."""
    drawn = sorted((one for one in parameters if ORDER in one.metadata), key=lambda one: one.metadata[ORDER])
    return {one.name: one.metadata[DRAW](rng) for one in drawn}


def _log_uniform(rng: Random, mild: float, severe: float) -> float:
    made: float = mild * (severe / mild) ** rng.random()
    return made


def _power(rng: Random, low: float, high: float) -> float:
    made: float = 10 ** rng.uniform(low, high)
    return made


class At(Random):
    """Draws every severity at one quantile: 0 is the mild end, 1 the severe one. Seeds and variants go by `seed`."""

    def __init__(self, quantile: float, seed: int = 0) -> None:
        super().__init__(seed)
        self._quantile = quantile

    def random(self) -> float:
        return self._quantile

    getrandbits = Random.getrandbits
    """Named here since Random draws integers from `random` where a subclass has that alone."""


def generator(*seed: object) -> torch.Generator:
    """Seeded by the values: the same for the same ones, in any process."""
    made = torch.Generator()
    made.manual_seed(Random(repr(seed)).getrandbits(63))
    return made
