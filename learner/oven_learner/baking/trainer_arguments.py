"""The arguments of `bake` that all training runs share, and checks of arguments for the trainer's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.completions.sample import Redact
from oven_learner.rewards.verdicts import RewardFunction
from oven_learner.teachers import TeacherConfig


@dataclass(frozen=True, kw_only=True)
class BakeArguments:
    """The arguments of `bake` that all training runs share."""

    model: Any
    prompts: Any
    rules: Mapping[str, RewardFunction]
    teachers: Sequence[TeacherConfig]
    teacher: str | None
    evaluate: Callable[[], Measurements] | None
    metrics: tuple[MetricSpec, ...]
    redact: Redact | None
    model_details: Mapping[str, Any]
    """Fields of ModelDescription, which describes the model to judges."""
    arguments: Mapping[str, Any]
    """Arguments of the trainer's configuration."""


def check_names(arguments: Mapping[str, Any], names: Iterable[str], bake_names: Mapping[str, str], owner: str) -> None:
    """Check argument names. `names` are `owner`'s fields, and `bake_names` maps some of them to their name in `bake`.
    Raises ConfigError for a field that has another name in `bake`, and UnknownNameError for an unknown one."""
    known_names = set(names)
    for name in arguments:
        if name in bake_names:
            raise ConfigError(f"{name}= is called {bake_names[name]}= in bake()")
        if name not in known_names:
            raise UnknownNameError(f"argument of bake() or of {owner}", name, known_names)


def save_steps(total_steps: int) -> int:
    """Return the number of steps between checkpoints: a tenth of the run, but at most TRL's default of 500."""
    return max(1, min(500, total_steps // 10))
