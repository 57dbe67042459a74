"""A share of a model's weights, cut as a sharded optimizer cuts it: out of all the parameters laid end to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch


@dataclass(frozen=True)
class Shard:
    """The weights from `begin` up to `end`, both as shares (0..1) of all of a model's weights in their order: what one
    rank owns under ZeRO (Rajbhandari et al. 2020, section 5)."""

    begin: float
    end: float

    @classmethod
    def of(cls, share: float, rng: Random) -> Shard:
        """Anywhere."""
        begin = rng.uniform(0.0, 1.0 - share)
        return cls(begin, begin + share)

    def slices(self, model: torch.nn.Module) -> Iterator[tuple[torch.nn.Parameter, slice]]:
        """Each parameter that lies in the shard at least in part, with the part of it, flattened."""
        parameters = list(model.parameters())
        total = sum(parameter.numel() for parameter in parameters)
        first, last = round(self.begin * total), round(self.end * total)
        at = 0
        for parameter in parameters:
            begin, end = max(first - at, 0), min(last - at, parameter.numel())
            if begin < end:
                yield parameter, slice(begin, end)
            at += parameter.numel()
