"""Builds the training job of the recipe `distillation`, with its policy, teachers, trainer and held-out evaluation."""

from pathlib import Path

import torch
from datasets import Dataset
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer

from oven_core.protocol.messages import MetricSpec
from oven_recipes.distillation.settings import DistillationSettings, Start
from oven_recipes.grpo.evaluation import held_out_evaluation
from oven_recipes.grpo.settings import accuracy_specs
from oven_recipes.grpo.sorting_policy import build_teachers, build_tokenizer, warm_policy
from oven_recipes.grpo.sorting_task import training_pools
from oven_recipes.quiet_libraries import quiet_libraries
from oven_recipes.recipe_interface import LR_BOUNDS
from oven_recipes.training_runner import Job, trainer_arguments


def build(settings: DistillationSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """Build the training job for one start. The trainer writes its files to `workdir`, and `cache` stores warm policies
    between runs."""
    quiet_libraries()
    tokenizer = build_tokenizer()
    pools = training_pools(settings.lengths, settings.train_prompts, seed)
    trainer = DistillationTrainer(
        model=warm_policy(settings, tokenizer, seed, cache),
        processing_class=tokenizer,
        args=DistillationConfig(
            lr_scheduler_type="constant",
            per_device_train_batch_size=settings.prompts_per_step,
            max_completion_length=settings.max_completion_length,
            beta=settings.divergence,
            temperature=settings.temperature,
            use_cpu=not torch.cuda.is_available(),
            **trainer_arguments(settings, start.learning_rate, seed, workdir),
        ),
        train_dataset=Dataset.from_list([vars(example) for pool in pools for example in pool]),
    )
    teachers = build_teachers(trainer, start.teachers, settings, tokenizer, seed, cache, start.teacher)
    return Job(
        trainer=trainer,
        evaluate=held_out_evaluation(trainer, tokenizer, settings),
        evaluate_every=settings.eval_every,
        metrics=recipe_metrics(settings),
        lr_bounds=LR_BOUNDS,
        teachers=teachers,
    )


def recipe_metrics(settings: DistillationSettings) -> tuple[MetricSpec, ...]:
    """Return the recipe's own metrics, which are published in addition to the trainer's."""
    return (
        MetricSpec(name="entropy", unit="nats per token"),
        MetricSpec(name="completions/mean_length", unit="tokens"),
        *accuracy_specs(settings.levels),
    )
