"""`grpo.epsilon`, `rloo.epsilon`: how far the policy's ratio to the one that sampled may count (PPO's clipping;
Schulman et al. 2017, arXiv 1707.06347, eq. 7), and `….epsilon_high` where the upper side has its own value (DAPO;
Yu et al. 2025, arXiv 2503.14476, eq. 10).
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs.user_values import UserValues, is_a

CLIPS = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Losses with both sides (TRL 1.16, `_compute_loss`). cispo has the upper one only; sapo and vespo have none."""


def announce(trainer: Any, actuators: Actuators, own: UserValues) -> None:
    """Where completions are reused after an optimizer step; before one the ratio is 1, and nothing clips."""
    kind = next((name for name in ("GRPOTrainer", "RLOOTrainer") if is_a(trainer, name)), None)
    if kind is None or not reuses(trainer):
        return
    name = "grpo.epsilon" if kind == "GRPOTrainer" else "rloo.epsilon"
    loss = getattr(trainer, "loss_type", "grpo")

    def both(value: float) -> None:
        trainer.epsilon_low = trainer.epsilon_high = value

    def low(value: float) -> None:
        trainer.epsilon_low = value

    def high(value: float) -> None:
        trainer.epsilon_high = value

    apart = trainer.args.epsilon_high is not None and trainer.args.epsilon_high != trainer.args.epsilon
    if loss in CLIPS:
        write, unit = (low, "ratio below 1") if apart else (both, "ratio around 1")
        own.scalar(actuators, name, lambda: float(trainer.epsilon_low), write, unit=unit, most=1.0)
    if loss == "cispo" or (loss in CLIPS and apart):
        unit = "ratio" if loss == "cispo" else "ratio above 1"
        own.scalar(actuators, f"{name}_high", lambda: float(trainer.epsilon_high), high, unit=unit)


def reuses(trainer: Any) -> bool:
    """TRL's own condition for keeping the sampling policy's log-probabilities (1.16, grpo_trainer.py:2643)."""
    generate_every = trainer.args.steps_per_generation * trainer.num_iterations
    return bool(trainer.args.gradient_accumulation_steps % generate_every != 0)
