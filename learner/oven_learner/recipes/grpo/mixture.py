"""A mixture over difficulty levels that may be changed while GRPOTrainer runs."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import Sampler

LAG_GENERATIONS = 2
"""How many generations are already drawn when a change is made: the loader of HF Trainer prefetches one batch and
accelerate looks one further ahead. A change made in step k is first seen in the data of step k + 2 (with one
optimiser step a generation)."""

EPOCH_CHUNKS = 100_000
"""Generations in an epoch: more than any run has, so that an epoch never ends and chunk numbers never restart."""


class LevelMixture:
    """Weights over levels, with the timeline of their changes.

    Chunk k (the prompts of generation k) is a function of the seed, k and the weights then in force: a run that
    restores `timeline` draws the same prompts again.
    """

    def __init__(self, levels: Sequence[str], weights: Mapping[str, float], seed: int) -> None:
        self.levels = tuple(levels)
        self.seed = seed
        self.timeline: list[tuple[int, dict[str, float]]] = [(0, self._normalised(weights))]
        self._next_chunk = 0

    def get(self) -> dict[str, float]:
        """The weights last set, by level; they sum to 1."""
        return dict(self.timeline[-1][1])

    def set(self, weights: Mapping[str, float]) -> None:
        """Draw by these weights from the next chunk that isn't drawn yet (`LAG_GENERATIONS` from now).

        Raises ValueError unless every level is named, and no other, with finite weights >= 0 of a positive sum.
        """
        entry = (self._next_chunk, self._normalised(weights))
        self.timeline = [old for old in self.timeline if old[0] < self._next_chunk] + [entry]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep: without the timeline a resumed run would draw its past otherwise."""
        return {"timeline": [[chunk, dict(weights)] for chunk, weights in self.timeline], "next": self._next_chunk}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A change from now on begins at the chunk that came next when the state was taken."""
        for _, weights in state["timeline"]:
            self._normalised(weights)  # raises ValueError where the levels are others
        self.timeline = [(chunk, dict(weights)) for chunk, weights in state["timeline"]]
        self._next_chunk = state["next"]

    def draw(self, chunk: int, pools: Mapping[str, Sequence[int]], count: int) -> list[int]:
        """The dataset rows of one chunk: `count` rows, at most one below or above each level's exact share.

        Levels are taken by systematic sampling (one random offset, equal strides): unbiased, and with far less noise
        in the per-level rewards than independent draws.
        """
        self._next_chunk = chunk + 1  # not the most ever: a run that goes back to a checkpoint draws from 0 again
        since = bisect_right([start for start, _ in self.timeline], chunk) - 1
        weights = self.timeline[since][1]
        rng = random.Random(f"mixture {self.seed} {chunk}")
        edges = list(accumulate(weights[level] for level in self.levels))
        offset = rng.random()
        rows = []
        for i in range(count):
            point = (i + offset) / count * edges[-1]
            level = self.levels[bisect_right(edges, point)]
            rows.append(rng.choice(pools[level]))
        rng.shuffle(rows)
        return rows

    def _normalised(self, weights: Mapping[str, float]) -> dict[str, float]:
        if set(weights) != set(self.levels):
            raise ValueError(f"mixture names {sorted(weights)}; name each of {sorted(self.levels)} and no other")
        total = sum(weights.values())
        if not (math.isfinite(total) and total > 0 and min(weights.values()) >= 0):
            raise ValueError(f"mixture {dict(weights)}: weights must be finite, >= 0, and of a positive sum")
        return {level: weights[level] / total for level in self.levels}


class MixtureSampler(Sampler[int]):
    """Yields dataset rows in the order that GRPOTrainer expects of its own RepeatSampler.

    A chunk of `prompts` rows, each repeated `group_size` times in a row, the whole `repeats` times over (TRL's
    num_iterations x steps_per_generation).
    """

    def __init__(
        self, mixture: LevelMixture, row_levels: Sequence[str], *, prompts: int, group_size: int, repeats: int
    ) -> None:
        self.mixture = mixture
        self.prompts, self.group_size, self.repeats = prompts, group_size, repeats
        self.pools = {
            level: [row for row, of in enumerate(row_levels) if of == level] for level in mixture.levels
        }  # level -> its rows

    def __iter__(self) -> Iterator[int]:
        for chunk in range(EPOCH_CHUNKS):
            rows = self.mixture.draw(chunk, self.pools, self.prompts)
            for _ in range(self.repeats):
                for row in rows:
                    yield from [row] * self.group_size

    def __len__(self) -> int:
        return EPOCH_CHUNKS * self.repeats * self.prompts * self.group_size
