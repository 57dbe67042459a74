"""What is held out: the share of unseen tasks that the policy solves, without a trace in the run that it measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from oven_core.protocol.messages import MetricSpec
from oven_recipes.environments.session import RepairSession, Tests
from oven_recipes.repair.attempts import attempt_all
from oven_recipes.repair.settings import RepairSettings

SOLVED = MetricSpec(name="eval/solved", better="up", held_out=True, ceiling=1.0, unit="greedy, unseen tasks")
PASSING = MetricSpec(name="eval/tests_passing", better="up", held_out=True, ceiling=1.0)
HELD_OUT = "held out"
"""The seed of the tasks: the same for every run, so that shares of different runs compare."""


def solved_by(
    trainer: Any, tokenizer: PreTrainedTokenizerFast, settings: RepairSettings, tests: Tests
) -> Callable[[], dict[str, float | list[float]]]:
    """Measures the policy that `trainer` trains, greedily: which tasks it solves, and the share of their tests that
    pass."""
    unseen = settings.tasks(HELD_OUT, settings.eval_tasks, evaluation=True)

    def evaluate() -> dict[str, float | list[float]]:
        sessions = [RepairSession(one, one.files, tests) for one in unseen]
        policy = trainer.accelerator.unwrap_model(trainer.model)
        with torch.random.fork_rng(devices=[]):
            attempt_all(policy, tokenizer, sessions, settings.max_completion_length, temperature=0)
        passing = sum(one.passing / len(one.outcomes) for one in sessions) / len(sessions)
        return {SOLVED.name: [float(one.solved) for one in sessions], PASSING.name: passing}

    return evaluate
