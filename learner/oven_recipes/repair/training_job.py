"""Builds the training job of the recipe `repair`, and collects traces of the policy's attempts after its warm-up."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig

from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.messages import MetricSpec
from oven_learner.losses.channel_trainer import ChannelTrainer
from oven_recipes.environments.openenv_client import serve
from oven_recipes.environments.recorder import Recorder
from oven_recipes.environments.repair_environment import RepairEnvironment, RepairTools
from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_session import RepairSession, Tests
from oven_recipes.environments.repositories import Repositories
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.preparation import Progress
from oven_recipes.quiet_libraries import quiet_libraries
from oven_recipes.recipe_interface import LR_BOUNDS, Start
from oven_recipes.repair.attempts import attempt_all
from oven_recipes.repair.settings import TUNED_LEARNING_RATE, RepairSettings
from oven_recipes.repair.warm_policy import warm_policy
from oven_recipes.training_runner import Job, trainer_arguments
from oven_runs.traces import jsonl
from oven_runs.traces.trace_records import Trace

SOLVED = MetricSpec(name="eval/solved", better="up", held_out=True, ceiling=1.0)
PASSING = MetricSpec(name="eval/tests_passing", better="up", held_out=True, ceiling=1.0)
HELD_OUT_SEED = "held out"
"""Seed of the held-out tasks. All runs are evaluated on the same tasks, so that the runs can be compared."""


def solved_evaluation(
    trainer: Any, tokenizer: PreTrainedTokenizerFast, settings: RepairSettings, tests: Tests
) -> Callable[[], dict[str, float | list[float]]]:
    """Return a function that evaluates the trainer's policy with greedy decoding. The function measures which held-out
    tasks are solved, and the mean share of passing tests."""
    held_out_tasks = settings.generate_tasks(HELD_OUT_SEED, settings.eval_tasks, evaluation=True)

    def evaluate() -> dict[str, float | list[float]]:
        sessions = [RepairSession(instance, instance.files, tests) for instance in held_out_tasks]
        policy = trainer.accelerator.unwrap_model(trainer.model)
        with torch.random.fork_rng(devices=[]):
            attempt_all(policy, tokenizer, sessions, settings.max_completion_length, temperature=0)
        passing = sum(session.passing_count / len(session.outcomes) for session in sessions) / len(sessions)
        return {SOLVED.name: [float(session.solved) for session in sessions], PASSING.name: passing}

    return evaluate


def build(settings: RepairSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """Build the training job for one start. The trainer writes its files to `workdir`, and traces are written to the
    parent folder of `workdir`. `cache` is the folder in which warm policies are stored."""
    tests = SandboxedTests()
    tasks = settings.generate_tasks(f"training {seed}", settings.train_tasks)
    trace_file = workdir.parent / "traces.jsonl"
    sink = file_sink(trace_file) if settings.traces else lambda trace: None
    create_environment = local_environments(tasks, tests)
    recorder = Recorder(create_environment, sink, split="train", name="repair", first=count_lines(trace_file))
    arguments = grpo_arguments(settings, start.learning_rate, seed, workdir)
    trainer = repair_trainer(warm_policy(settings, seed, cache, tests), tasks, recorder, arguments)
    return Job(
        trainer=trainer,
        evaluate=solved_evaluation(trainer, trainer.processing_class, settings, tests),
        evaluate_every=settings.eval_every,
        metrics=(SOLVED, PASSING),
        lr_bounds=LR_BOUNDS,
    )


def repair_trainer(
    policy: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
    tasks: Sequence[Instance],
    recorder: Recorder,
    arguments: dict[str, Any],
    trainer_class: type[ChannelTrainer] = ChannelTrainer,
) -> Any:
    """Build a trainer whose policy attempts these tasks. `policy` is a model and its tokenizer. `recorder` creates the
    environments, and records the rollouts. `arguments` are the arguments of GRPOConfig. Raises ConfigError if there is
    no task."""
    quiet_libraries()
    if not tasks:
        raise ConfigError("there is no task to attempt; give at least one instance")
    model, tokenizer = policy
    trainer = trainer_class(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[recorder.reward],
        args=GRPOConfig(**arguments),
        train_dataset=build_dataset(tasks),
        environment_factory=recorder.environment,
    )
    recorder.bind(trainer)
    return trainer


def local_environments(
    instances: Sequence[Instance], tests: SandboxedTests, repositories: Repositories | None = None
) -> Callable[[], RepairTools]:
    """Return a factory of environments that run in this process. Raises ConfigError if a repository is missing."""
    repositories = repositories or Repositories()
    for instance in instances:
        repositories.check(instance)
    by_id: Mapping[str, Instance] = {instance.instance_id: instance for instance in instances}
    return lambda: RepairEnvironment(by_id, repositories.read_files, tests)


def build_dataset(instances: Sequence[Instance]) -> Dataset:
    """Return a dataset in TRL's format. Each row has a prompt of one message, and the fields that a trace stores."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": instance.problem_statement}],
                "instance_id": instance.instance_id,
                "problem_statement": instance.problem_statement,
                "FAIL_TO_PASS": list(instance.FAIL_TO_PASS),
                "PASS_TO_PASS": list(instance.PASS_TO_PASS),
            }
            for instance in instances
        ]
    )


def file_sink(path: Path) -> Callable[[Trace], None]:
    """Return a function that appends a trace to the file. The function raises OSError if a write fails."""
    return lambda trace: jsonl.append(path, trace)


def count_lines(path: Path) -> int:
    """Return the number of lines in a file, or 0 if it does not exist."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def grpo_arguments(settings: RepairSettings, learning_rate: float, seed: int, workdir: Path) -> dict[str, Any]:
    """Return the arguments of GRPOConfig. `seed` is the seed of the sampling."""
    return {
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": settings.prompts_per_step * settings.group_size,
        "num_generations": settings.group_size,
        "max_completion_length": settings.max_completion_length,
        "use_cpu": not torch.cuda.is_available(),
        **trainer_arguments(settings, learning_rate, seed, workdir),
    }


def collect_traces(
    settings: RepairSettings,
    instances: Sequence[Instance],
    seed: int,
    cache: Path,
    *,
    finished: int = 0,
    policy_seed: int | None = None,
    repositories: Path | None = None,
    openenv: bool = False,
) -> Iterator[list[Trace]]:
    """Let the warm policy attempt each instance `group_size` times. Yield the traces of `prompts_per_step` instances at
    a time. Skip the first `finished` traces, which an earlier call collected. The same arguments give the same traces,
    with or without OpenEnv, because torch's global generator is seeded for each batch.

    `policy_seed` is the seed of the warm policy (default: `seed`). `repositories` is the folder of clones for instances
    that do not include their files. `openenv` runs the environments on an OpenEnv server. Raises ConfigError if a
    repository is missing, and ProcessError if an attempt was not recorded."""
    traces: list[Trace] = []
    tests = SandboxedTests()
    unique_instances = list({instance.instance_id: instance for instance in instances}.values())
    with contextlib.ExitStack() as stack:
        create_environment = local_environments(unique_instances, tests, Repositories(repositories))
        if openenv:
            create_environment = stack.enter_context(serve(unique_instances, repositories))
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oven-collect-")))
        policy = warm_policy(settings, seed if policy_seed is None else policy_seed, cache, tests)
        recorder = Recorder(create_environment, traces.append, split="collected", name="repair", first=finished)
        arguments = grpo_arguments(settings, TUNED_LEARNING_RATE, seed, workdir)
        arguments["per_device_eval_batch_size"] = arguments["per_device_train_batch_size"]
        trainer = repair_trainer(policy, unique_instances, recorder, arguments)
        trainer.remove_callback(PrinterCallback)
        progress = Progress("collecting", len(instances) * settings.group_size, "rollout")
        for first in range(finished // settings.group_size, len(instances), settings.prompts_per_step):
            progress.report(first * settings.group_size)
            batch = instances[first : first + settings.prompts_per_step]
            set_seed(random.Random(f"batch {first} {seed}").getrandbits(32))
            trainer.evaluate(eval_dataset=build_dataset(batch))  # runs rollouts, which are recorded, without training
            if len(traces) != (expected := len(batch) * settings.group_size):
                raise ProcessError(
                    f"{len(traces)} of {expected} attempts were recorded; the warning above shows the reason"
                )
            yield traces.copy()
            traces.clear()
