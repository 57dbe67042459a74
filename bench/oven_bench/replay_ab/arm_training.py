"""One training of the experiment: the recipe `repair` from the warm policy, with an arm's channels, then measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, set_seed

from oven_bench.replay_ab.ab_design import ARMS, AbDesign, Training
from oven_bench.replay_ab.arm_pairs import TrainingData, with_random_direction
from oven_bench.replay_ab.training_results import TrainingResult
from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel
from oven_learner.losses.hints import Hints
from oven_learner.losses.replay_preference import ReplayImitation, ReplayPreference
from oven_learner.losses.self_distillation import SelfDistillation
from oven_recipes.environments.instance import Instance
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.environments.session import RepairSession
from oven_recipes.repair.attempts import attempt_all
from oven_recipes.repair.job import repair_trainer
from oven_recipes.repair.settings import parse_start
from oven_runs.traces.records import Pair

HELD_OUT = "a/b held out"
"""The seed of the tasks that arms are measured on: neither training's, nor those of warm-ups and evaluations."""
DRAWN = 3
"""Times as many tasks are drawn as are measured on: those about functions that traces show are left out."""
AT_ONCE = 240
"""Attempts side by side: their contexts and caches are in memory together."""
LAST = 5
"""Steps whose mean reward is reported."""


def train_and_measure(design: AbDesign, training: Training, data: TrainingData, cache: Path) -> TrainingResult:
    """What the training came to. `cache` keeps the warm policy, which the first training makes."""
    began, cpu = time.monotonic(), time.process_time()
    tests = SandboxedTests()
    settings = design.recipe
    with tempfile.TemporaryDirectory(prefix="oven-ab-") as work:
        trainer = repair_trainer(
            settings,
            parse_start("tuned"),
            design.policy_seed,
            Path(work),
            cache,
            tests=tests,
            channels=channels(design, training, data.pairs),
            instances=settings.tasks(f"training {training.seed}", settings.train_tasks),
        )
        trainer.remove_callback(PrinterCallback)
        # The warm policy is the same for all; the order of tasks and what is sampled are the seed's.
        trainer.args.seed = training.seed
        set_seed(training.seed)
        trainer.train()
        solved = measured(design, training.seed, trainer, tests, held_out(design, data))
        logs: list[dict[str, Any]] = trainer.state.log_history
    rewards = [entry["reward"] for entry in logs if "reward" in entry][-LAST:]
    gauges = {name: value for entry in logs for name, value in entry.items() if name.startswith("channel/")}
    return TrainingResult(
        seed=training.seed,
        arm=training.arm,
        mix=training.mix,
        solved=solved,
        reward=sum(rewards) / len(rewards) if rewards else None,
        gauges=gauges,
        seconds=round(time.monotonic() - began, 1),
        cpu_seconds=round(time.process_time() - cpu, 1),
    )


def channels(design: AbDesign, training: Training, pairs: Sequence[Pair]) -> list[Channel]:
    """The arm's loss terms beside GRPO's; none for GRPO."""
    arm = ARMS[training.arm]
    given = with_random_direction(pairs, training.seed) if arm.direction == "random" else pairs
    common: dict[str, Any] = {"batch": design.pairs_per_step, "seed": training.seed}
    found: list[Channel] = []
    if arm.self_distillation:
        found.append(SelfDistillation(design.sdpo, maximum=design.sdpo, hints=Hints()))
    if arm.replay:
        found.append(ReplayPreference(given, design.replay, maximum=design.replay, beta=design.dpo_beta, **common))
    if arm.imitation:
        found.append(ReplayImitation(given, design.imitation, maximum=design.imitation, **common))
    return found


def held_out(design: AbDesign, data: TrainingData) -> list[Instance]:
    """The tasks, the same for all trainings, none about a function that a trace is about. Raises ConfigError where too
    few are left."""
    drawn = design.recipe.tasks(HELD_OUT, DRAWN * design.tasks, evaluation=True)
    left = [one for one in drawn if not data.has_shown(one.problem_statement)]
    if len(left) < design.tasks:
        raise ConfigError(
            f"{len(left)} of {len(drawn)} held-out tasks are about functions that no trace shows, and {design.tasks} "
            "are wanted; give fewer --tasks, or traces of fewer tasks"
        )
    return left[: design.tasks]


def measured(
    design: AbDesign, seed: int, trainer: Any, tests: SandboxedTests, chosen: Sequence[Instance]
) -> tuple[tuple[int, ...], ...]:
    """[task][sample], 1 where the trained policy solves it. What is sampled depends on the seed, not on the arm."""
    settings = design.recipe
    sessions = [RepairSession(one, one.files, tests) for one in chosen for _ in range(design.samples)]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for first in range(0, len(sessions), AT_ONCE):
            attempt_all(
                policy, trainer.processing_class, sessions[first : first + AT_ONCE], settings.max_completion_length
            )
    solved = [int(session.solved) for session in sessions]
    return tuple(tuple(solved[at : at + design.samples]) for at in range(0, len(solved), design.samples))
