"""The arguments of `bake` that are common to all trainings, and their values in a trainer's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.completions.sample import Redact
from oven_learner.rewards.scores import RewardFunction
from oven_learner.teachers import TeacherConfig


@dataclass(frozen=True, kw_only=True)
class BakeArguments:
    """The arguments of `bake`, before a run exists."""

    model: Any
    prompts: Any
    rules: Mapping[str, RewardFunction]
    teachers: Sequence[TeacherConfig]
    teacher: str | None
    evaluate: Callable[[], Measured] | None
    metrics: tuple[MetricSpec, ...]
    redact: Redact | None
    model_details: Mapping[str, Any]
    """The model description for judges: fields of ModelDescription."""
    arguments: Mapping[str, Any]
    """Arguments of the trainer's configuration."""


def check_names(arguments: Mapping[str, Any], known: Iterable[str], called: Mapping[str, str], owner: str) -> None:
    """Check argument names. `called` maps `owner`'s fields to their names in `bake`.

    Raises ConfigError for a field that `bake` renames, and UnknownNameError for an unknown one.
    """
    names = set(known)
    for name in arguments:
        if name in called:
            raise ConfigError(f"{name}= is called {called[name]}= here")
        if name not in names:
            raise UnknownNameError(f"argument of bake() or of {owner}", name, names)


def save_steps(total_steps: int) -> int:
    """Return the steps between checkpoints: a tenth of the run, at most TRL's 500. A resumed run repeats at most a
    tenth."""
    return max(1, min(500, total_steps // 10))
