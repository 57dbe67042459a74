"""Which preference pairs a micro-batch has: a function of its number, so that nothing has to be kept for a resume."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PairSampler:
    """Epochs of all `pairs`, each in its own order; of every `ranks` × `batch` that follow each other, rank r has
    the r-th `batch`. The ranks together have what one process with a batch of `ranks` × `batch` has."""

    pairs: int
    batch: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    _orders: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def at(self, number: int) -> list[int]:
        """The places of the pairs of micro-batch `number`, 0 the first of training."""
        first = (number * self.ranks + self.rank) * self.batch
        return [self._order(place // self.pairs)[place % self.pairs] for place in range(first, first + self.batch)]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch may end one epoch and begin the next
                self._orders.clear()
            order = list(range(self.pairs))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]
