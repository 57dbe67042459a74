"""Pretraining faults of the data: damaged, repeated, shuffled or planted rows."""

from __future__ import annotations

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.seeded_draws import choice, log_uniform, random_seed, whole
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import pair, pool


@fault("pretraining.corrupted_batches")
class CorruptedBatches(Fault):
    """A stretch of the data has random bytes. A run that rolls back meets it again."""

    length: int = whole(5, 60)
    share: float = log_uniform(0.1, 1)  # of the bytes
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return with_random_bytes(self, batch, step.cursor)


@fault("pretraining.bad_stretch_and_rate")
class BadStretchAndRate(Fault):
    """A damaged stretch of the data, and a learning rate that is too high from there on."""

    batches: int = whole(5, 40)  # that are damaged
    share: float = log_uniform(0.1, 1)  # of their bytes
    seed: int = random_seed()
    factor: float = log_uniform(3, 20)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return batch if step.batches_since >= self.batches else with_random_bytes(self, batch, step.cursor)


def with_random_bytes(fault: Fault, batch: Tensor, cursor: int) -> Tensor:
    """The batch with a share of its bytes replaced by random ones; the same ones at the same position."""
    draws = fault.draws("corrupted", cursor)
    damaged = torch.rand(batch.shape, generator=draws) < fault.share
    return torch.where(damaged, torch.randint(BYTES, batch.shape, generator=draws), batch)


@fault("pretraining.duplicated_data")
class DuplicatedData(Fault):
    """A few rows repeat over and over: a shard is listed too often, or a loader is stuck."""

    length: int = whole(20, 100)
    rows: int = whole(128, 8)  # different ones
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rows = torch.randint(self.rows, (len(batch),), generator=self.draws("row", step.cursor))
        return pool(self.rows, self.seed)[rows]


@fault("pretraining.shuffled_targets")
class ShuffledTargets(Fault):
    """A share of the rows has its targets in random order, like a broken mapping of labels."""

    length: int = whole(5, 60)
    share: float = log_uniform(0.2, 1)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        draws = self.draws("shuffled", step.cursor)
        inputs, targets = pair(batch)
        struck = torch.rand(len(batch), 1, generator=draws) < self.share
        orders = torch.rand(targets.shape, generator=draws).argsort(1)
        return torch.stack([inputs, torch.where(struck, targets.gather(1, orders), targets)])


@fault("pretraining.canaries", healthy=True)
class Canaries(Fault):
    """Rows of random letters behind a fixed prefix, each planted once to measure memorisation later (Carlini et al.
    2019). Loss and gradient norm stand out in each batch with canaries."""

    every: int = choice((4, 6, 8, 12))  # batches
    rows: int = choice((1, 1, 1, 2))  # of such a batch
    letters: bytes = choice((b"0123456789", b"0123456789abcdef", bytes(range(33, 127))))
    seed: int = random_seed()

    PREFIX = b"\n# canary: "

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        if not due(step.batches_since, self.every):
            return batch
        draws = self.draws("canaries", step.cursor)
        picks = torch.randint(len(self.letters), (self.rows, batch.shape[1]), generator=draws)
        planted = torch.tensor(list(self.letters))[picks]
        planted[:, : len(self.PREFIX)] = torch.tensor(list(self.PREFIX))
        return torch.cat((planted, batch[self.rows :]))
