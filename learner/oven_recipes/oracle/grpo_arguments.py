"""What TRL's trainer is told: the settings as its arguments."""

from __future__ import annotations

from pathlib import Path

import torch
from trl.trainer.grpo_config import GRPOConfig

from oven_recipes.oracle.settings import OracleSettings
from oven_recipes.runner import TRAINER_ARGUMENTS

WITH_REFERENCE = 1e-6
"""A β above 0, with which TRL makes the adapter `ref` of the supervised one. A β of 0 is set after that: else one that
is raised later would pull towards the model without any adapter."""


def grpo_arguments(settings: OracleSettings, learning_rate: float, seed: int, workdir: Path) -> GRPOConfig:
    """Advantages are not divided by their group's standard deviation, which in a group of alike answers is noise."""
    return GRPOConfig(
        output_dir=str(workdir),
        seed=seed,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.prompts_per_step * settings.num_generations,
        num_generations=settings.num_generations,
        max_completion_length=settings.max_completion_length,
        temperature=settings.temperature,
        beta=settings.kl_penalty or WITH_REFERENCE,
        scale_rewards="none",
        max_grad_norm=settings.max_grad_norm,
        bf16=False,  # a given model's weights stay in the type that they were loaded in
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        **TRAINER_ARGUMENTS,
    )
