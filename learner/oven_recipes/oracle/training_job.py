"""Builds the training job of the recipe `oracle`, with its model, activations, trainer, reward and evaluations."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from oven_core.errors import ConfigError, OvenError
from oven_learner.random_state import preserve_state
from oven_learner.rewards import Committee, ModelDescription, convene
from oven_learner.rewards.calibrated_reward import CalibratedReward
from oven_learner.rewards.informativeness import informativeness
from oven_recipes.activations.activation_store import ActivationStore, activation_key
from oven_recipes.activations.grpo_trainer import COLUMN, ActivationGRPOTrainer
from oven_recipes.activations.model_blocks import layer_at
from oven_recipes.activations.placeholders import oracle_prompt
from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items, metric_specs
from oven_recipes.oracle.evaluation_report import EvaluationReport
from oven_recipes.oracle.questions import QuestionedPrompt, read_questions
from oven_recipes.oracle.saved_oracle import TrainingRecord, save_oracle
from oven_recipes.oracle.settings import OracleSettings, Start
from oven_recipes.oracle.small_model import DEFAULT_SCHEDULE, DEFAULT_SIZES, build_tokenizer, load_small_model
from oven_recipes.oracle.supervised_stage import Subject, SupervisedTrainer, benchmark_prompts, run_supervised_stage
from oven_recipes.oracle.template_questions import template_dataset
from oven_recipes.oracle.user_model import fresh_adapter, load_adapter, load_model
from oven_recipes.preparation import Progress
from oven_recipes.quiet_libraries import quiet_libraries
from oven_recipes.recipe_interface import LR_BOUNDS
from oven_recipes.training_runner import Job, trainer_arguments


def training_rows(subject: Subject, prompts: Sequence[QuestionedPrompt], seed: int) -> list[dict[str, Any]]:
    """Return one dataset row per question, with the oracle's prompt and the key of its activation. The reward uses the
    other columns, which contain the known answers if there are any. The seed determines each question's layer."""
    rng = random.Random(f"layers {seed}")
    rows = []
    for prompt in prompts:
        for question in prompt.questions:
            layer = rng.choice(subject.layers)
            key = activation_key(subject.name, prompt.prompt, layer)
            answer = question.answer
            rows.append({
                "prompt": oracle_prompt(layer, len(subject.store.get(key)), question.text, subject.tokenizer),
                COLUMN: key,
                "text": prompt.prompt,
                "question": question.text,
                "specific_answers": list(answer.specific) if answer else [],
                "vague_answers": list(answer.vague) if answer else [],
            })  # fmt: skip
    return rows


REFERENCE_BETA = 1e-6
"""A positive β that makes TRL create the adapter `ref`, a copy of the supervised one. The actual β is set afterwards.
Without `ref`, raising β later would pull the policy towards the model without any adapter."""
log = logging.getLogger("oven.learner")


class EvaluationWriter(TrainerCallback):
    """Evaluates the policy at the start and the end, and writes a JSON file and a diagram for each evaluation. The
    first one reports its progress. If an evaluation fails, the reason is logged and training continues. The job itself
    calls `write` at the end, because the final weights are chosen after the callbacks."""

    def __init__(self, evaluation: OracleEvaluation, policy: Any, folder: Path, *, at_start: bool) -> None:
        self._evaluation, self._policy, self._folder, self._at_start = evaluation, policy, folder, at_start

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._at_start and state.global_step == 0 and state.is_world_process_zero:
            progress = Progress("evaluation at the start", self._evaluation.answer_count, "answer")
            self.write("start", 0, progress.report)

    def write(self, phase: str, step: int, report_progress: Callable[[int], object] = lambda done: None) -> None:
        """Evaluate the policy and write the files. `phase` is "start" or "end"."""
        try:
            with preserve_state(self._policy):
                report = EvaluationReport.measure(self._evaluation, f"at the {phase}, step {step}", report_progress)
            file = self._folder / f"evaluation-{phase}.json"
            report.write(file, file.with_suffix(".png"))
        except (OvenError, OSError) as error:
            log.warning("could not write the evaluation at the %s: %s", phase, error)
            return
        log.info("evaluation at the %s: %s", phase, file)
        for line in report.lines():
            log.info("%s", line)


REWARD_FUNCTIONS = {"informativeness": informativeness}
"""Reward functions for data with known answers."""
PRETRAIN_SEED = 1
"""Seed of the small model, which is the same in all runs. A run's own seed determines its data, adapter and answers."""
BETA_BOUNDS = (0.01, 100.0)
"""Bounds of β as multiples of the user's β. The upper bound is high enough to stop the KL divergence from growing."""


def build(
    settings: OracleSettings, start: Start, seed: int, workdir: Path, cache: Path, committee: Committee | None = None
) -> Job:
    """Build the training job for one start. The trainer writes its files to `workdir`. The oracle and its evaluations
    are saved in the parent folder. `cache` stores small models, supervised adapters and activations between runs. The
    default committee scores only questions with known answers. Raises ConfigError for unusable models and data."""
    quiet_libraries()
    subject = load_subject(settings, seed, cache)
    if settings.stage == "sft":
        return _supervised_job(settings, start, seed, workdir, subject)
    if committee is None:
        calibration = CalibratedReward(settings.calibration_lambda)
        committee = Committee(REWARD_FUNCTIONS, seed=seed, calibration=calibration)
    has_judges = committee.remote is not None and bool(committee.remote.members)
    prompts = _grpo_prompts(settings, seed, subject, has_judges=has_judges)
    policy = _adapter(settings, subject)
    if settings.oracle_lora_path is None:
        lesson_prompts = _lesson_prompts(settings, seed)
        subject.capture(lesson_prompts, settings.most_activations)
        run_supervised_stage(policy, subject, lesson_prompts, settings, start.confidence, seed, cache)
    subject.capture(prompts, settings.most_activations)
    committee.group_size = settings.num_generations
    committee.description = ModelDescription.from_model(
        subject.model,
        subject.tokenizer,
        description="Answer questions about a text that the model cannot read. It only sees activations of the text.",
        domain="reading activations",
        output_format="a short answer; the confidence that the model states with it is not shown",
    )
    args = GRPOConfig(
        lr_scheduler_type="constant",
        per_device_train_batch_size=settings.prompts_per_step * settings.num_generations,
        num_generations=settings.num_generations,
        max_completion_length=settings.max_completion_length,
        temperature=settings.temperature,
        beta=settings.kl_penalty or REFERENCE_BETA,
        scale_rewards="none",  # a group's standard deviation is noise when its answers are similar
        use_cpu=not torch.cuda.is_available(),
        **trainer_arguments(settings, start.learning_rate, seed, workdir),
    )
    trainer = ActivationGRPOTrainer(
        model=policy,
        processing_class=subject.tokenizer,
        reward_funcs=[committee],
        args=args,
        train_dataset=Dataset.from_list(training_rows(subject, prompts, seed)),
        store=subject.store,
    )
    trainer.beta = args.beta = settings.kl_penalty
    common_arguments = _common_arguments(settings, trainer, subject, workdir)
    return Job(trainer=trainer, beta_bounds=BETA_BOUNDS, committee=committee, **common_arguments)


def build_judged(settings: OracleSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """Build the training job with a reward from known answers and from the judges that environment variables name."""
    calibration = CalibratedReward(settings.calibration_lambda)
    committee = convene(REWARD_FUNCTIONS, seed=seed, calibration=calibration) if settings.stage == "grpo" else None
    return build(settings, start, seed, workdir, cache, committee)


def load_subject(settings: OracleSettings, seed: int, cache: Path) -> Subject:
    """Load the user's model or the cached small model, and open the store of its activations."""
    model: Any
    if settings.model is None:
        tokenizer = build_tokenizer()
        sizes = DEFAULT_SIZES._replace(
            hidden=settings.hidden, ffn=settings.hidden * DEFAULT_SIZES.ffn // DEFAULT_SIZES.hidden
        )
        steps = DEFAULT_SCHEDULE.steps if settings.pretrain_steps is None else settings.pretrain_steps
        schedule = DEFAULT_SCHEDULE._replace(steps=steps)
        model, name = load_small_model(tokenizer, PRETRAIN_SEED, cache, sizes, schedule)
    else:
        model, tokenizer = load_model(settings.model, settings.dtype)
        name = settings.model
    layers = tuple(dict.fromkeys(layer_at(model, depth) for depth in settings.layer_percents))
    # A store has one hidden size, and its keys do not contain the number of tokens, so each combination has a folder.
    digest = hashlib.sha256(f"{name}\0{settings.most_activations}".encode()).hexdigest()[:16]
    return Subject(model, tokenizer, name, layers, ActivationStore(cache / f"oracle-activations-{digest}"))


def _grpo_prompts(settings: OracleSettings, seed: int, subject: Subject, *, has_judges: bool) -> list[QuestionedPrompt]:
    """Return the prompts for GRPO. Raises ConfigError if they have no known answers and there is no judge."""
    if settings.questions is None:
        return _lesson_prompts(settings, seed)
    if not has_judges:
        raise ConfigError(
            f"{settings.questions} has questions without answers, but no judge is configured to score them: add a "
            "judge with the role informativeness (docs/judging.md), or omit --questions"
        )
    return read_questions(settings.questions, subject.tokenizer, settings.train_texts)


def _lesson_prompts(settings: OracleSettings, seed: int) -> list[QuestionedPrompt]:
    """Return prompts with known answers: template prompts, and training texts of the benchmarks."""
    return [
        *template_dataset(seed, settings.train_texts),
        *benchmark_prompts(settings.train_texts, random.Random(f"benchmark prompts {seed}")),
    ]


def _adapter(settings: OracleSettings, subject: Subject) -> Any:
    """Return the subject's model with the user's adapter, or with a new one."""
    if settings.oracle_lora_path is None:
        return fresh_adapter(subject.model, settings.lora_rank)
    return load_adapter(subject.model, subject.name, settings.oracle_lora_path)


def _supervised_job(settings: OracleSettings, start: Start, seed: int, workdir: Path, subject: Subject) -> Job:
    """Build a job for the supervised stage only. The job trains the user's adapter, or a new one."""
    prompts = _lesson_prompts(settings, seed)
    subject.capture(prompts, settings.most_activations)
    policy = _adapter(settings, subject)
    trainer = SupervisedTrainer(policy, subject, prompts, settings, start.confidence, seed, workdir)
    return Job(trainer=trainer, **_common_arguments(settings, trainer, subject, workdir))


def _common_arguments(settings: OracleSettings, trainer: Any, subject: Subject, workdir: Path) -> dict[str, Any]:
    """Return the arguments of `Job` that both stages share. The oracle is evaluated on many items at the start and the
    end, and on a few during training. It is saved before and after training."""
    policy, run_folder = trainer.accelerator.unwrap_model(trainer.model), workdir.parent
    evaluation = partial(
        OracleEvaluation,
        policy,
        subject.tokenizer,
        trainer.injection,
        depths=settings.layer_percents,
        max_new_tokens=settings.max_completion_length,
        tokens=settings.most_activations,
    )
    quick_evaluation = evaluation(benchmark_items(settings.benchmarks, settings.quick_items))
    first_progress = Progress("first quick evaluation", quick_evaluation.answer_count, "answer")
    # Only the first one takes place before the run starts. Later ones are not preparation.
    reports: Iterator[Callable[[int], object]] = chain([first_progress.report], repeat(lambda done: None))
    full_evaluation = evaluation(benchmark_items(settings.benchmarks, settings.eval_items))
    evaluation_writer = EvaluationWriter(full_evaluation, policy, run_folder, at_start=settings.initial_eval)
    trainer.add_callback(evaluation_writer)
    if not any(workdir.glob("checkpoint-*")):  # a resumed run has a newer adapter in its checkpoint
        save_oracle(policy, subject.tokenizer, run_folder, _training_record(settings))

    def finish() -> None:
        step = int(trainer.state.global_step)
        if trainer.accelerator.is_main_process:
            save_oracle(policy, subject.tokenizer, run_folder, _training_record(settings, step))
            evaluation_writer.write("end", step)

    return {
        "evaluate": lambda: quick_evaluation.run(next(reports)).metrics(),
        "evaluate_every": settings.eval_every,
        "metrics": metric_specs(),
        "lr_bounds": LR_BOUNDS,
        "on_finish": finish,
    }


def _training_record(settings: OracleSettings, step: int = 0) -> TrainingRecord:
    return TrainingRecord(
        model=settings.model or "",
        layer_percents=settings.layer_percents,
        most_activations=settings.most_activations,
        max_completion_length=settings.max_completion_length,
        step=step,
    )
