"""Counts missing rewards. TRL gives a completion without a finite reward an advantage of 0 and continues."""

from __future__ import annotations

from typing import Any

import torch

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook

UNSCORED = MetricSpec(name="rewards/unscored", better="down", unit="completions without any reward (None or NaN)")
INFINITE = MetricSpec(
    name="rewards/infinite", better="down", unit="completions whose infinite reward voids their group"
)
SCORED = ("GRPOTrainer", "RLOOTrainer", "SDPOTrainer")
"""Trainers whose `_calculate_rewards` returns one row per completion and one column per function, of all ranks (TRL
1.16). Another trainer's method of that name may return anything: A2PO's returns one number per completion."""


class RewardFaults(StepHook):
    """Wraps the trainer's reward calculation and reads its result, for trainers in SCORED."""

    def __init__(self, trainer: Any) -> None:
        self._counts_of_step: dict[str, float] = {}
        self._trainer = trainer
        scored = any(cls.__name__ in SCORED for cls in type(trainer).__mro__)
        calculate = getattr(trainer, "_calculate_rewards", None) if scored else None
        self._is_active = calculate is not None
        if calculate is not None:

            def counted(*args: Any, **kwargs: Any) -> Any:
                rewards = calculate(*args, **kwargs)  # (all completions, functions)
                if trainer.model.training:
                    self._count(rewards)
                return rewards

            trainer._calculate_rewards = counted

    def announced(self) -> tuple[MetricSpec, ...]:
        return (UNSCORED, INFINITE) if self._is_active else ()

    def end_step(self, step: StepEnd) -> None:
        """Add the counts of this step's generation, if there was one."""
        step.metrics.update(self._counts_of_step)
        self._counts_of_step = {}

    def _count(self, rewards: torch.Tensor) -> None:
        unscored = rewards.isnan().all(dim=1).sum()
        infinite = rewards.isinf().any(dim=1).sum()
        counts = torch.stack([unscored, infinite]).tolist()
        self._counts_of_step = {UNSCORED.name: float(counts[0]), INFINITE.name: float(counts[1])}
