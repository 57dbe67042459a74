"""A contiguous part of all weights, as one machine holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from torch import nn


@dataclass(frozen=True)
class Part:
    """From `begin` to `end`, as shares of the number of weights in the parameters' order."""

    begin: float
    end: float

    @classmethod
    def of(cls, share: float, rng: Random) -> Part:
        """Anywhere."""
        begin = rng.uniform(0.0, 1.0 - share)
        return cls(begin, begin + share)

    def slices(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, slice]]:
        """The parameters that it touches, and its elements of each, flat."""
        total = sum(parameter.numel() for parameter in model.parameters())
        first, last, passed = round(self.begin * total), round(self.end * total), 0
        for parameter in model.parameters():
            start, stop = max(first - passed, 0), min(last - passed, parameter.numel())
            passed += parameter.numel()
            if start < stop:
                yield parameter, slice(start, stop)
