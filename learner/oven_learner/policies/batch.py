"""One batch of scored samples with its metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import Tensor

from oven_learner import random_state
from oven_learner.policies.policy import Samples


@dataclass
class Batch:
    """The scored groups of batch `number`; empty if all failed."""

    number: int
    samples: Samples
    conditions: list[Any]
    """One per sample."""
    advantages: Tensor
    """(B,)."""
    old: Tensor | None = None
    """(B, T): log-probabilities at sampling time. None if the batch is used for one update only."""
    reference: tuple[str, Tensor] | None = None
    """The teacher's name and its (B, T) log-probabilities."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the samples, logged once."""

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the samples on the first call, then {}."""
        metrics, self.metrics = self.metrics, {}
        return metrics

    def parts(self, rows: int | None) -> Iterator[Tensor]:
        """Split the rows, (R,) int64, into pieces of at most `rows`."""
        everything = torch.arange(len(self.samples), device=self.samples.mask.device)
        return iter(torch.split(everything, rows or max(1, len(everything))))

    def conditions_of(self, part: Tensor) -> list[Any]:
        """Return one condition per row of `part`."""
        return [self.conditions[row] for row in part.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the outputs, which are already scored, and without the reference, which is
        recomputed."""
        return {
            "number": self.number,
            "tensors": dict(self.samples.tensors),
            "mask": self.samples.mask,
            "conditions": self.conditions,
            "advantages": self.advantages,
            "old": self.old,
        }


def batch_of(state: dict[str, Any], device: torch.device) -> Batch:
    """Rebuild a batch from its `state_dict`."""
    tensors = {name: tensor.to(device) for name, tensor in state["tensors"].items()}
    old = state["old"].to(device) if state["old"] is not None else None
    samples = Samples(tensors, state["mask"].to(device), [])
    return Batch(state["number"], samples, list(state["conditions"]), state["advantages"].to(device), old)


@contextmanager
def drawn(seed: int, number: int) -> Iterator[None]:
    """Seed every random generator from the seed and the batch number, and restore them afterwards."""
    state = random_state.take()
    set_seed(int.from_bytes(hashlib.sha256(f"batch {seed} {number}".encode()).digest()[:4], "big"))
    try:
        yield
    finally:
        random_state.restore(state)
