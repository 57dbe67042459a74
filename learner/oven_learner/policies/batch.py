"""One batch of scored samples, and what is known of it."""

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
    """The groups of batch `number` that were scored; none is left where all failed."""

    number: int
    samples: Samples
    conditions: list[Any]
    """One per sample."""
    advantages: Tensor
    """(B,)."""
    old: Tensor | None = None
    """(B, T): log-probabilities when it was sampled; None where it is used for one update only."""
    reference: tuple[str, Tensor] | None = None
    """A teacher's name, and its (B, T)."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the samples; logged once."""

    def take_metrics(self) -> dict[str, float]:
        """The first time what was measured of the samples, then nothing."""
        metrics, self.metrics = self.metrics, {}
        return metrics

    def parts(self, rows: int | None) -> Iterator[Tensor]:
        """The rows, (R,) int64, in pieces of at most `rows`."""
        everything = torch.arange(len(self.samples), device=self.samples.mask.device)
        return iter(torch.split(everything, rows or max(1, len(everything))))

    def conditions_of(self, part: Tensor) -> list[Any]:
        """One per row of `part`."""
        return [self.conditions[place] for place in part.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """All but the outputs, which were judged already, and what a teacher says of it anew."""
        return {
            "number": self.number,
            "tensors": dict(self.samples.tensors),
            "mask": self.samples.mask,
            "conditions": self.conditions,
            "advantages": self.advantages,
            "old": self.old,
        }


def batch_of(state: dict[str, Any], device: torch.device) -> Batch:
    """The batch that said this of itself."""
    tensors = {name: tensor.to(device) for name, tensor in state["tensors"].items()}
    old = state["old"].to(device) if state["old"] is not None else None
    samples = Samples(tensors, state["mask"].to(device), [])
    return Batch(state["number"], samples, list(state["conditions"]), state["advantages"].to(device), old)


@contextmanager
def drawn(seed: int, number: int) -> Iterator[None]:
    """Every random generator begins anew, from the seed and the number alone, and is put back after it."""
    state = random_state.take()
    set_seed(int.from_bytes(hashlib.sha256(f"batch {seed} {number}".encode()).digest()[:4], "big"))
    try:
        yield
    finally:
        random_state.restore(state)
