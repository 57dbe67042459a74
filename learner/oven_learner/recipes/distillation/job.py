"""Puts the recipe together: warm policy, prompts, teachers, TRL's trainer, and the held-out evaluation."""

import os

# Before trl is imported: it reports use at construction and asks a model hub for names unless told not to.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PrinterCallback
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer

from oven_learner.recipes.distillation.settings import DistillationSettings
from oven_learner.recipes.distillation.starts import Start
from oven_learner.recipes.grpo.evaluation import greedy_accuracy, held_out_examples
from oven_learner.recipes.grpo.task import pool
from oven_learner.recipes.grpo.teachers import build_teachers
from oven_learner.recipes.grpo.tokenizer import build_tokenizer
from oven_learner.recipes.grpo.warmup import warm_policy
from oven_learner.teachers import Teachers


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: call `trainer.train()`."""

    trainer: DistillationTrainer
    evaluate: Callable[[], dict[str, float]]  # greedy held-out accuracy, 0..1, total and per level
    teachers: Teachers


def build(settings: DistillationSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """The job for one start: `workdir` gets the trainer's files, `cache` keeps warm policies between runs."""
    # TRL 1.16 still uses the old name of this option, at each generation; there is nothing that a user could do.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
    tokenizer = build_tokenizer()
    prompts = random.Random(f"prompts {seed}")
    rows = [e for length in sorted(settings.lengths) for e in pool(length, settings.train_prompts, prompts)]
    trainer = DistillationTrainer(
        model=warm_policy(settings, tokenizer, seed, cache),
        processing_class=tokenizer,
        args=DistillationConfig(
            output_dir=str(workdir),
            seed=seed,
            learning_rate=start.learning_rate,
            lr_scheduler_type="constant",
            max_steps=settings.max_steps,
            per_device_train_batch_size=settings.prompts_per_step,
            max_completion_length=settings.max_completion_length,
            beta=settings.divergence,
            temperature=settings.temperature,
            max_grad_norm=settings.max_grad_norm,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            logging_nan_inf_filter=False,  # else a NaN loss is reported as 0
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Dataset.from_list([vars(row) for row in rows]),
    )
    teachers = build_teachers(trainer, start.teachers, settings, tokenizer, seed, cache, start.teacher)
    examples = held_out_examples(settings)

    def evaluate() -> dict[str, float]:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        return greedy_accuracy(policy, tokenizer, examples, settings.max_completion_length)

    trainer.remove_callback(PrinterCallback)  # what disable_tqdm puts in the bar's place: a print a step
    return Job(trainer, evaluate, teachers)
