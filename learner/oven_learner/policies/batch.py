"""Batches of scored samples for the PolicyTrainer, their saved state, and the seeding that makes them repeatable."""

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
    """The scored groups of batch `number`. The batch is empty if no group could be scored."""

    number: int
    samples: Samples
    conditions: list[Any]
    """Condition of each sample."""
    advantages: Tensor
    """Advantage of each sample, (B,)."""
    old_log_probs: Tensor | None = None
    """Log-probabilities at sampling time, (B, T). None if the batch is only used for one update."""
    teacher_log_probs: tuple[str, Tensor] | None = None
    """Name of a teacher and its log-probabilities, (B, T). None if they have not been computed yet."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the samples. The trainer logs them with the first update only."""

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the samples on the first call, and {} on later calls."""
        metrics, self.metrics = self.metrics, {}
        return metrics

    def row_chunks(self, max_rows: int | None) -> Iterator[Tensor]:
        """Yield all row numbers in chunks (R,) int64 of at most `max_rows`. None means one chunk."""
        all_rows = torch.arange(len(self.samples), device=self.samples.mask.device)
        return iter(torch.split(all_rows, max_rows or max(1, len(all_rows))))

    def select_conditions(self, rows: Tensor) -> list[Any]:
        """Return the conditions of the samples with these row numbers."""
        return [self.conditions[row] for row in rows.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. It omits the outputs, which are already scored, and the teacher's
        log-probabilities, which are recomputed."""
        return {
            "number": self.number,
            "tensors": dict(self.samples.tensors),
            "mask": self.samples.mask,
            "conditions": self.conditions,
            "advantages": self.advantages,
            "old": self.old_log_probs,
        }


def restore_batch(state: dict[str, Any], device: torch.device) -> Batch:
    """Rebuild a batch from its `state_dict`."""
    tensors = {name: tensor.to(device) for name, tensor in state["tensors"].items()}
    old_log_probs = state["old"].to(device) if state["old"] is not None else None
    samples = Samples(tensors, state["mask"].to(device), [])
    return Batch(state["number"], samples, list(state["conditions"]), state["advantages"].to(device), old_log_probs)


@contextmanager
def batch_seed(seed: int, batch_number: int) -> Iterator[None]:
    """Seed all random generators from `seed` and `batch_number` in a `with` block, and restore them afterwards."""
    state = random_state.capture()
    set_seed(int.from_bytes(hashlib.sha256(f"batch {seed} {batch_number}".encode()).digest()[:4], "big"))
    try:
        yield
    finally:
        random_state.restore(state)
