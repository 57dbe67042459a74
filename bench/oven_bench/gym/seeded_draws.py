"""Random parameters of faults, declared in their classes, and generators of random tensors.

    weight: float = log_uniform(0.1, 1)

A parameter that only sets the severity takes one `rng.random()`, so that `At` can pick the mild or the severe end.
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
    """A parameter that this function draws."""
    parameter: T = field(metadata={DRAW: draw, ORDER: next(_declared)})
    return parameter


def uniform(mild: float, severe: float) -> float:
    return drawn(lambda rng: rng.uniform(mild, severe))


def log_uniform(mild: float, severe: float) -> float:
    """Log-uniform between two positive numbers. `severe` may be the smaller one."""
    return drawn(lambda rng: _log_uniform(rng, mild, severe))


def whole(mild: int, severe: int) -> int:
    """A whole number, log-uniform."""
    return drawn(lambda rng: round(_log_uniform(rng, mild, severe)))


def log10_uniform(low: float, high: float, times: float = 1.0) -> float:
    """`times` · 10^u, with u uniform between `low` and `high`."""
    return drawn(lambda rng: times * _power(rng, low, high))


def count(least: int, decades: float) -> int:
    """A whole number, log-uniform from `least` over this many powers of ten."""
    return drawn(lambda rng: round(least * _power(rng, 0.0, decades)))


def integer(low: int, high: int) -> int:
    """A uniform whole number from `low` to `high`, both included."""
    return drawn(lambda rng: rng.randint(low, high))


def choice(options: Sequence[T]) -> T:
    """One of the options. An option that is listed twice is drawn twice as often."""
    return drawn(lambda rng: rng.choice(options))


def chance(probability: float) -> bool:
    return drawn(lambda rng: rng.random() < probability)


def random_seed() -> int:
    return drawn(lambda rng: rng.getrandbits(32))


def declared(parameters: Iterable[Field[Any]], rng: Random) -> dict[str, Any]:
    """A value for each field that is a parameter, drawn in the order of their declarations."""
    in_order = sorted((each for each in parameters if ORDER in each.metadata), key=lambda each: each.metadata[ORDER])
    return {each.name: each.metadata[DRAW](rng) for each in in_order}


def _log_uniform(rng: Random, mild: float, severe: float) -> float:
    value: float = mild * (severe / mild) ** rng.random()
    return value


def _power(rng: Random, low: float, high: float) -> float:
    value: float = 10 ** rng.uniform(low, high)
    return value


class At(Random):
    """Draws every severity at one quantile: 0 is the mild end, 1 the severe end. Seeds and variants follow `seed`."""

    def __init__(self, quantile: float, seed: int = 0) -> None:
        super().__init__(seed)
        self._quantile = quantile

    def random(self) -> float:
        return self._quantile

    getrandbits = Random.getrandbits
    """Repeated here, because Random draws integers from `random` if a subclass defines only that."""


def generator(*seed: object) -> torch.Generator:
    """A random generator, the same for the same values in every process."""
    draws = torch.Generator()
    draws.manual_seed(Random(repr(seed)).getrandbits(63))
    return draws
