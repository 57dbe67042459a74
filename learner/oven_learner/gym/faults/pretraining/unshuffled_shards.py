"""Data that come in the order in which they were written."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.sources import in_order
from oven_learner.gym.pretraining.corpus import SHARES


@dataclass(frozen=True)
class Unshuffled(Case):
    onset: int
    length: int
    """Batches that are read from one shard before the next."""
    share: float
    """Of a batch's rows: of the workers that have the small buffer."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        shard, read = divmod(cursor - self.onset, self.length)
        draws = generator("shard", self.salt, shard)
        source = list(SHARES)[int(torch.multinomial(torch.tensor(list(SHARES.values())), 1, generator=draws))]
        place = float(torch.rand(1, generator=draws))
        count = max(1, round(self.share * len(batch)))
        ordered = in_order(source, place, (read + 1) * count)[read * count :]
        return torch.cat((ordered[:, : batch.shape[1]], batch[count:]))


class UnshuffledShards(Family):
    """The shuffle buffer was made smaller than a shard to save memory, or the shuffle moved behind the loop that reads
    the files: a batch is a few pages of one document, and for many steps there is but one source. Over a whole epoch
    the data are what they always were."""

    name = "pretraining.unshuffled_shards"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Unshuffled:
        return Unshuffled(onset, round(4 * 10 ** rng.uniform(0.0, 1.3)), rng.uniform(0.4, 1.0), rng.getrandbits(32))
