"""Puts the recipe together: warm policy, prompts, mixture, reward, TRL's trainer, and the held-out evaluation."""

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
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_learner.hf.knobs.mixture import Mixture, plug_in
from oven_learner.recipes.grpo.evaluation import greedy_accuracy, held_out_examples
from oven_learner.recipes.grpo.rewards import RULES, WEIGHTS
from oven_learner.recipes.grpo.settings import TUNED_LEARNING_RATE, GrpoSettings
from oven_learner.recipes.grpo.starts import Start
from oven_learner.recipes.grpo.task import pool
from oven_learner.recipes.grpo.teachers import build_teachers
from oven_learner.recipes.grpo.tokenizer import build_tokenizer
from oven_learner.recipes.grpo.warmup import warm_policy
from oven_learner.rewards import Committee, ModelDescription
from oven_learner.teachers import Teachers


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: call `trainer.train()`."""

    trainer: GRPOTrainer
    mixture: Mixture
    evaluate: Callable[[], dict[str, float]]  # greedy held-out accuracy, 0..1, total and per level
    tuned_learning_rate: float
    teachers: Teachers | None  # where the start or the settings have a beta above 0
    committee: Committee


def build(
    settings: GrpoSettings, start: Start, seed: int, workdir: Path, cache: Path, committee: Committee | None = None
) -> Job:
    """The job for one start: `workdir` gets the trainer's files, `cache` keeps warm policies between runs. Without a
    `committee` the recipe's rules judge alone."""
    committee = committee or Committee(RULES, weights=WEIGHTS, seed=seed)
    committee.group_size = settings.group_size
    # TRL 1.16 still uses the old name of this option, at each generation; there is nothing that a user could do.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
    tokenizer = build_tokenizer()
    model = warm_policy(settings, tokenizer, seed, cache)
    committee.policy = describe(model, tokenizer).to_agent_prompt()
    prompts = random.Random(f"prompts {seed}")
    rows = [pool(length, settings.train_prompts, prompts) for length in sorted(settings.lengths)]
    levels = [Dataset.from_list([vars(row) for row in of_level]) for of_level in rows]
    mixture = Mixture(dict(zip(settings.levels, levels, strict=True)), start.mixture, seed=seed)
    args = _arguments(settings, start.learning_rate, seed, workdir)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[committee],
        args=args,
        train_dataset=mixture.dataset,
    )
    plug_in(trainer, mixture)
    beta = settings.beta if start.beta is None else start.beta
    teachers = None
    if beta > 0:
        # Only now: a trainer that is made with a beta loads its reference from the policy's path, and there is none.
        trainer.beta = args.beta = beta
        teachers = build_teachers(trainer, (start.teacher, "strong"), settings, tokenizer, seed, cache)
    examples = held_out_examples(settings)

    def evaluate() -> dict[str, float]:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        return greedy_accuracy(policy, tokenizer, examples, settings.max_completion_length)

    trainer.remove_callback(PrinterCallback)  # what disable_tqdm puts in the bar's place: a print a step
    return Job(trainer, mixture, evaluate, TUNED_LEARNING_RATE, teachers, committee)


def describe(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> ModelDescription:
    """What remote judges are told. The rule is in it: they judge answers, and need not guess the task."""
    return ModelDescription.from_model(
        model,
        tokenizer,
        task="Sort the digits between S and = in ascending order; repeated digits stay repeated.",
        good_answer="exactly the sorted digits, and nothing else",
        example_input="S5203=",
        example_output="0235",
    )


def _arguments(settings: GrpoSettings, learning_rate: float, seed: int, workdir: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(workdir),
        seed=seed,
        learning_rate=learning_rate,
        # Plain "constant" ignores warmup_steps without a word.
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=settings.lr_warmup_steps,
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.prompts_per_step * settings.group_size,
        num_generations=settings.group_size,
        max_completion_length=settings.max_completion_length,
        max_grad_norm=settings.max_grad_norm,
        bf16=False,
        gradient_checkpointing=False,  # recomputing costs 28 % and saves memory that this model doesn't need
        logging_steps=1,
        logging_nan_inf_filter=False,  # else a NaN loss is reported as 0
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
