"""Batches of scored samples, their saved state, and the seed for sampling a batch."""

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
    """The scored groups of batch `number`. It is empty if all groups failed."""

    number: int
    samples: Samples
    conditions: list[Any]
    """Condition of each sample."""
    advantages: Tensor
    """Advantage of each sample, (B,)."""
    old_log_probs: Tensor | None = None
    """Log-probabilities at sampling time, (B, T). None if the batch is only used for one update."""
    reference: tuple[str, Tensor] | None = None
    """Name of a teacher and its log-probabilities, (B, T)."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the samples, logged once."""

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the samples on the first call, then {}."""
        metrics, self.metrics = self.metrics, {}
        return metrics

    def parts(self, rows: int | None) -> Iterator[Tensor]:
        """Yield the indices of the samples in parts of at most `rows`, each (R,) int64. None means one part."""
        all_rows = torch.arange(len(self.samples), device=self.samples.mask.device)
        return iter(torch.split(all_rows, rows or max(1, len(all_rows))))

    def conditions_of(self, part: Tensor) -> list[Any]:
        """Return one condition per row of `part`."""
        return [self.conditions[row] for row in part.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the outputs, which are already scored, and the reference, which is recomputed."""
        return {
            "number": self.number,
            "tensors": dict(self.samples.tensors),
            "mask": self.samples.mask,
            "conditions": self.conditions,
            "advantages": self.advantages,
            "old": self.old_log_probs,
        }


def batch_of(state: dict[str, Any], device: torch.device) -> Batch:
    """Rebuild a batch from its `state_dict`."""
    tensors = {name: tensor.to(device) for name, tensor in state["tensors"].items()}
    old_log_probs = state["old"].to(device) if state["old"] is not None else None
    samples = Samples(tensors, state["mask"].to(device), [])
    return Batch(state["number"], samples, list(state["conditions"]), state["advantages"].to(device), old_log_probs)


@contextmanager
def fixed_seed(seed: int, number: int) -> Iterator[None]:
    """Seed all random generators from the seed and the batch number, and restore them at the end of the block."""
    state = random_state.capture()
    set_seed(int.from_bytes(hashlib.sha256(f"batch {seed} {number}".encode()).digest()[:4], "big"))
    try:
        yield
    finally:
        random_state.restore(state)
