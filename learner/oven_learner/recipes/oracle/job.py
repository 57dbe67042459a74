"""Puts the recipe together: model, activations, supervised adapter, TRL's trainer with the activations in place, the
committee's reward, and the evaluations."""

import os

# Before trl is imported: it reports use at construction and asks a model hub for names unless told not to.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # recipe.py says otherwise first where a hub id is named

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from oven_learner.activations.blocks import layer_at
from oven_learner.activations.store import ActivationStore
from oven_learner.activations.trainer import ActivationGRPOTrainer
from oven_learner.recipes.oracle.activation_rows import captured, training_rows
from oven_learner.recipes.oracle.evaluation import OracleEvaluation, benchmark_items, metric_specs
from oven_learner.recipes.oracle.evaluation_files import EvaluationFiles
from oven_learner.recipes.oracle.given_model import fresh_adapter, load_adapter, load_model
from oven_learner.recipes.oracle.grpo_arguments import grpo_arguments, quiet
from oven_learner.recipes.oracle.questions import QuestionedPrompt
from oven_learner.recipes.oracle.saved_oracle import Trained, save_oracle
from oven_learner.recipes.oracle.settings import OracleSettings, Start
from oven_learner.recipes.oracle.template_questions import template_dataset
from oven_learner.recipes.runner import Job
from oven_learner.recipes.sorting_settings import LR_BOUNDS

BETA_BOUNDS = (0.01, 100.0)
"""Multiples of the user's β: a KL that runs away may need an anchor that holds."""


@dataclass(frozen=True)
class Subject:
    """The model whose activations are read, and which reads them under an adapter."""

    model: Any
    tokenizer: Any
    name: str
    """In the keys of activations."""
    layers: tuple[int, ...]
    store: ActivationStore


def build(
    settings: OracleSettings, start: Start, seed: int, workdir: Path, cache: Path, committee: Committee | None = None
) -> Job:
    """The job for one start: `workdir` gets the trainer's files, `cache` keeps the models made on the spot, supervised
    adapters and activations between runs. Without a `committee` the known answers judge alone.

    Raises ConfigError for models, adapters and data that cannot be used.
    """
    quiet()
    subject = load_subject(settings, seed, cache)
    committee = committee or offline_committee(settings, seed)
    prompts, known = training_prompts(settings, seed, committee)
    texts = list(dict.fromkeys(one.prompt for one in (*prompts, *known)))
    captured(
        subject.model, subject.tokenizer, subject.name, texts, subject.layers, settings.most_activations, subject.store
    )
    policy = supervised_policy(settings, start, seed, cache, subject, known)
    run = workdir.parent
    save_oracle(policy, subject.tokenizer, run, _trained(settings))
    rows = training_rows(subject.tokenizer, subject.name, prompts, subject.layers, subject.store, seed)
    args = grpo_arguments(settings, start.learning_rate, seed, workdir)
    trainer = ActivationGRPOTrainer(
        model=policy,
        processing_class=subject.tokenizer,
        reward_funcs=[committee],
        args=args,
        train_dataset=Dataset.from_list(rows),
        store=subject.store,
    )
    trainer.beta = args.beta = settings.kl_penalty
    evaluation = partial(
        OracleEvaluation,
        trainer.accelerator.unwrap_model(trainer.model),
        subject.tokenizer,
        trainer.injection,
        percents=settings.layer_percents,
        max_new_tokens=settings.max_completion_length,
        tokens=settings.most_activations,
    )
    quick = evaluation(benchmark_items(settings.benchmarks, settings.quick_items))
    whole = evaluation(benchmark_items(settings.benchmarks, settings.eval_items))
    trainer.add_callback(EvaluationFiles(whole, run, at_start=settings.initial_eval))
    return Job(
        trainer=trainer,
        evaluate=lambda: quick.run().measured(),
        evaluate_every=settings.eval_every,
        metrics=metric_specs(),
        lr_bounds=LR_BOUNDS,
        beta_bounds=BETA_BOUNDS,
        committee=committee,
    )


def load_subject(settings: OracleSettings, seed: int, cache: Path) -> Subject:
    """The given model, or the one that is made on the spot and kept in the cache, and the store of its activations."""
    if settings.model is None:
        tokenizer = build_tokenizer()
        model, name = own_model(tokenizer, seed, cache)
    else:
        model, tokenizer = load_model(settings.model, settings.dtype)
        name = settings.model
    layers = tuple(dict.fromkeys(layer_at(model, percent) for percent in settings.layer_percents))
    # A folder per model, and per number of tokens: a store has one hidden size, and a key does not say how many.
    digest = hashlib.sha256(f"{name}\0{settings.most_activations}".encode()).hexdigest()[:16]
    return Subject(model, tokenizer, name, layers, ActivationStore(cache / f"oracle-activations-{digest}"))
