"""The settings and named starts of the recipe `repair`. This module does not import torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_task_generator import check_function_kinds, generate_tasks
from oven_recipes.recipe_interface import LR_STARTS, RecipeSettings, Start, learning_rate_start, no_such_start

TUNED_LEARNING_RATE = 3e-4
"""The tuned learning rate of GRPO with Adam."""
STARTS = LR_STARTS
"""The names of the starts, and what is wrong with each."""


class RepairSettings(RecipeSettings):
    """Settings of the tasks, the policy, its warm-up and GRPO. GRPO's learning rate comes from a `Start` instead."""

    function_kinds: Annotated[tuple[str, ...], AfterValidator(check_function_kinds)] = Field(
        default=(), description="kinds of function to generate; all if empty"
    )
    neighbour: bool = Field(default=False, description="add a second, correct function to each module")
    train_tasks: int = Field(default=2000, ge=1, description="number of training tasks to draw from")
    eval_tasks: int = Field(default=64, ge=1, description="number of unseen tasks for evaluation")

    # The policy: a Llama.
    hidden: int = 96
    layers: int = 3
    heads: int = 4
    ffn: int = 288

    # The supervised warm-up on demonstrations (`sft_…`), which ends when the policy solves enough unseen tasks.
    demonstrations: int = Field(default=3000, ge=1, description="number of different demonstrations")
    correct_first_edit_share: float = Field(
        default=0.5, ge=0, le=1, description="share of demonstrations whose first edit is correct"
    )
    sft_batch: int = Field(default=16, ge=1)
    sft_learning_rate: float = Field(default=5e-3, gt=0)
    sft_steps: int = Field(default=800, ge=1, description="maximum number of steps of the warm-up")
    sft_eval_every: int = Field(default=100, ge=1, description="warm-up steps between measurements")
    sft_tasks: int = Field(default=64, ge=1, description="number of unseen tasks per measurement")
    warmup_target: float = Field(
        default=0.3, ge=0, le=1, description="success rate on unseen tasks that ends the warm-up"
    )

    # GRPO.
    max_steps: int = Field(default=40, ge=1, le=10**9)
    prompts_per_step: int = Field(default=8, ge=1)
    group_size: int = Field(default=8, ge=2, description="attempts per task; an advantage needs at least 2")
    max_completion_length: int = Field(
        default=384, ge=16, description="maximum tokens of an attempt, including results"
    )
    eval_every: int = Field(default=10, ge=1, description="steps between held-out evaluations")
    traces: bool = Field(default=True, description="write each rollout's trace into the run's folder, traces.jsonl")

    def generate_tasks(self, seed: int | str, count: int, *, evaluation: bool = False) -> list[Instance]:
        """Generate `count` tasks for training or evaluation. Raises ValueError if there are fewer different tasks."""
        return generate_tasks(
            seed, count, evaluation=evaluation, kinds=self.function_kinds, with_neighbour=self.neighbour
        )


def parse_start(text: str, seed: int, settings: RepairSettings) -> Start:
    """Return the start named `text`. Raises ValueError, which lists similar names, for an unknown name."""
    if text not in STARTS:
        raise no_such_start(text, STARTS)
    return Start(*learning_rate_start(text, TUNED_LEARNING_RATE))
