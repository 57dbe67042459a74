"""Choose the preference pairs of each micro-batch as a function of its number, so that a resume needs no state."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PairSampler:
    """Shuffled epochs over `pairs`. Of each consecutive `ranks` × `batch` pairs, rank r gets the r-th `batch`.

    Together the ranks see the same pairs as one process with a batch of `ranks` × `batch`.
    """

    pairs: int
    batch: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    _orders: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def micro_batch(self, number: int) -> list[int]:
        """Return the indices of the pairs in micro-batch `number`; 0 is the first of training."""
        first = (number * self.ranks + self.rank) * self.batch
        return [
            self._order(position // self.pairs)[position % self.pairs] for position in range(first, first + self.batch)
        ]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch may end one epoch and begin the next
                self._orders.clear()
            order = list(range(self.pairs))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]
