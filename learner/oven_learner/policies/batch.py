"""Sources of conditions, batches of scored samples, and the GRPO objective with TRL 1.16's defaults. Group advantages
and the KL term are from Shao et al. 2024 (arXiv 2402.03300). The mean over all steps is from DAPO (Yu et al. 2025,
arXiv 2503.14476). The ratio on the KL term is from DeepSeek-V3.2 (arXiv 2512.02556)."""

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
MAX_LOG_RATIO = 20.0
"""Maximum difference between two log-probabilities of a step, in nats. Beyond it the ratio is constant and has no
gradient. Tokens stay far below it. A narrow Gaussian can move by thousands in one update, and inf × 0 is NaN."""


@runtime_checkable
class ConditionSource(Protocol):
    """A source of conditions. If it has `state_dict` and `load_state_dict`, checkpoints save its position."""

    def next_batch(self, n: int) -> Sequence[Any]:
        """Return the next n conditions."""


class ShuffledConditions:
    """An endless source that repeats a list in a new order each epoch. The seed and the epoch determine the order."""

    def __init__(self, conditions: Sequence[Any], seed: int) -> None:
        if not conditions:
            raise ConfigError("there are no conditions to sample for; pass at least one")
        self._conditions, self._seed, self._used_count = list(conditions), seed, 0

    def next_batch(self, n: int) -> list[Any]:
        """Return the next n conditions, continuing into the next epoch at the end."""
        return [self._next() for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of conditions used so far."""
        return {"given": self._used_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the saved number of conditions."""
        self._used_count = int(state["given"])

    def _next(self) -> Any:
        epoch, position = divmod(self._used_count, len(self._conditions))
        self._used_count += 1
        order = list(self._conditions)
        random.Random(f"conditions {self._seed} {epoch}").shuffle(order)
        return order[position]


def source_of(conditions: Any, seed: int) -> ConditionSource:
    """Return a source for a list, or the source itself. Raises ConfigError for anything else."""
    if isinstance(conditions, ConditionSource):
        return conditions
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        return ShuffledConditions(conditions, seed)
    raise ConfigError(
        f"conditions have the type {type(conditions).__name__}; expected a list, or an object with next_batch(n)"
    )


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
        """Yield the row numbers in parts of at most `rows`, each (R,) int64. None means one part."""
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


def advantages(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return the advantage of each sample (B,), and the standard deviation of each group (G,) with divisor n − 1.
    `rewards` (B,) must be finite and in group order."""
    groups = rewards.view(-1, group_size)
    deviation = groups.std(dim=1)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (deviation[:, None] + STD_FLOOR)).flatten(), deviation


def objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    teacher_log_probs: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    *,
    beta: float,
    epsilon: tuple[float, float],
    row_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return three sums over the steps of some rows of a batch: the loss, the KL, and the number of clipped steps. The
    last two are detached. The log-probabilities are (R, T) and come from the policy, from the policy at sampling time,
    and from the teacher. With a β of 0 the teacher is not used. `advantage` is (R,). `row_weight` (R, 1) is the weight
    of each step in a row. The weights of all steps in the batch must sum to 1."""
    ratio = torch.exp((log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped_ratio = ratio.clamp(1 - epsilon[0], 1 + epsilon[1])
    advantage = advantage[:, None]
    loss = -torch.min(ratio * advantage, clipped_ratio * advantage)
    kl = torch.zeros_like(loss)
    if beta and teacher_log_probs is not None:
        log_ratio = (teacher_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = (torch.exp(log_ratio) - log_ratio - 1) * ratio
        loss = loss + beta * kl
    is_below = (ratio < 1 - epsilon[0]) & (advantage < 0)
    is_above = (ratio > 1 + epsilon[1]) & (advantage > 0)
    clipped_steps = ((is_below | is_above).float() * mask).sum()
    return (loss * mask * row_weight).sum(), (kl.detach() * mask).sum(), clipped_steps


def row_weights(mask: Tensor, loss_type: str) -> Tensor:
    """Return the weight of each step in a row, (B, 1), for a mask (B, T). For "dapo" all steps have the same weight.
    For "grpo" all samples have the same total weight."""
    if loss_type == "dapo":
        return torch.full_like(mask[:, :1], 1.0) / mask.sum().clamp(min=1.0)
    return 1.0 / (mask.sum(-1, keepdim=True).clamp(min=1.0) * len(mask))
