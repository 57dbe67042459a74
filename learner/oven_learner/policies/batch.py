"""Sources of conditions, batches of scored samples, and the GRPO objective with TRL 1.16's defaults.

Group advantages and the KL term: Shao et al. 2024, arXiv 2402.03300. The mean over all steps: DAPO, Yu et al. 2025,
arXiv 2503.14476. The ratio on the KL term: DeepSeek-V3.2, arXiv 2512.02556.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate.utils import set_seed
from torch import Tensor

from oven_core.errors import ConfigError
from oven_learner import random_state
from oven_learner.policies.policy import Samples

STD_FLOOR = 1e-4
"""Constant added to a group's standard deviation, as in TRL."""
FURTHEST = 20.0
"""Maximum difference of a step's two log-probabilities, in nats. Beyond it the ratio is constant and has no gradient.
Tokens stay far below it. A narrow Gaussian can move by thousands in one update, and inf × 0 is NaN."""


@runtime_checkable
class ConditionSource(Protocol):
    """A source of conditions. If it has `state_dict` and `load_state_dict`, checkpoints save its position."""

    def next_batch(self, n: int) -> Sequence[Any]:
        """Return the next n conditions."""


class Shuffled:
    """An endless source that repeats a list. The seed and the epoch determine the order of each pass."""

    def __init__(self, conditions: Sequence[Any], seed: int) -> None:
        if not conditions:
            raise ConfigError("there are no conditions to sample for; give at least one")
        self._conditions, self._seed, self._drawn = list(conditions), seed, 0

    def next_batch(self, n: int) -> list[Any]:
        """Return the next n conditions, continuing into the next epoch at the end."""
        return [self._next() for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of conditions used so far."""
        return {"given": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the saved number of conditions."""
        self._drawn = int(state["given"])

    def _next(self) -> Any:
        epoch, position = divmod(self._drawn, len(self._conditions))
        self._drawn += 1
        order = list(self._conditions)
        random.Random(f"conditions {self._seed} {epoch}").shuffle(order)
        return order[position]


def source_of(conditions: Any, seed: int) -> ConditionSource:
    """Return a source for a list, or the source itself. Raises ConfigError for anything else."""
    if isinstance(conditions, ConditionSource):
        return conditions
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        return Shuffled(conditions, seed)
    raise ConfigError(f"conditions are {type(conditions).__name__}; give a list, or an object with next_batch(n)")


@dataclass
class Batch:
    """The scored groups of batch `number`. It is empty if all groups failed."""

    number: int
    samples: Samples
    conditions: list[Any]
    """The condition of each sample."""
    advantages: Tensor
    """The advantage of each sample, (B,)."""
    old: Tensor | None = None
    """Log-probabilities at sampling time, (B, T). None if the batch is only used for one update."""
    reference: tuple[str, Tensor] | None = None
    """The teacher's name and its log-probabilities, (B, T)."""
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
        """Return the state without outputs, already scored, and without the reference, which is recomputed."""
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
    """Seed all random generators from the seed and the batch number, and restore them afterwards."""
    state = random_state.take()
    set_seed(int.from_bytes(hashlib.sha256(f"batch {seed} {number}".encode()).digest()[:4], "big"))
    try:
        yield
    finally:
        random_state.restore(state)


def advantages(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return advantages (B,) and each group's standard deviation (with n − 1), (G,), from finite rewards (B,) in group
    order."""
    groups = rewards.view(-1, group_size)
    deviation = groups.std(dim=1)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (deviation[:, None] + STD_FLOOR)).flatten(), deviation


def objective(
    now: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    *,
    beta: float,
    epsilon: tuple[float, float],
    row_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss summed over some rows of a batch, and detached sums over steps of the KL and of clipped steps.

    `now`, `old`, `reference`: (R, T) log-probabilities of the policy, of the sampling policy, and of the teacher. With
    a β of 0 the teacher is not used. `advantage`: (R,). `row_weight`: (R, 1), the weight of each step in a row. Its sum
    over all steps of the batch is 1.
    """
    ratio = torch.exp((now - old).clamp(-FURTHEST, FURTHEST))
    clipped = ratio.clamp(1 - epsilon[0], 1 + epsilon[1])
    gain = advantage[:, None]
    per_step = -torch.min(ratio * gain, clipped * gain)
    kl = torch.zeros_like(per_step)
    if beta and reference is not None:
        away = (reference - now).clamp(-FURTHEST, FURTHEST)
        kl = (torch.exp(away) - away - 1) * ratio
        per_step = per_step + beta * kl
    outside = ((ratio < 1 - epsilon[0]) & (gain < 0)) | ((ratio > 1 + epsilon[1]) & (gain > 0))
    return (per_step * mask * row_weight).sum(), (kl.detach() * mask).sum(), (outside.float() * mask).sum()


def row_weights(mask: Tensor, loss_type: str) -> Tensor:
    """Return the weight of a row's steps, (B, 1), for a (B, T) mask: equal per step for dapo, per sample for grpo."""
    if loss_type == "dapo":
        return torch.full_like(mask[:, :1], 1.0) / mask.sum().clamp(min=1.0)
    return 1.0 / (mask.sum(-1, keepdim=True).clamp(min=1.0) * len(mask))
