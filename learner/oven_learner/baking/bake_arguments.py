"""The arguments of `bake` that text and policy training share, and checks of arguments for the trainer's config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.completions.sample_message import Redact
from oven_learner.rewards.verdicts import RewardFunction
from oven_learner.teachers import TeacherConfig


@dataclass(frozen=True, kw_only=True)
class BakeArguments:
    """The arguments of `bake` that text and policy training share."""

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
    config_args: Mapping[str, Any]
    """Arguments of GRPOConfig or PolicyTrainerConfig."""


def check_config_names(
    arguments: Mapping[str, Any], config_fields: Iterable[str], bake_names: Mapping[str, str], config_class: str
) -> None:
    """Check that all arguments are fields of the trainer's config class. `bake_names` maps fields to their name in
    `bake`. Raises ConfigError for a field with another name in `bake`, and UnknownNameError for an unknown name."""
    known_names = set(config_fields)
    for name in arguments:
        if name in bake_names:
            raise ConfigError(f"{name}= is called {bake_names[name]}= in bake()")
        if name not in known_names:
            raise UnknownNameError(f"argument of bake() or of {config_class}", name, known_names)


def save_steps(total_steps: int) -> int:
    """Return the number of steps between checkpoints: a tenth of the run, but at most TRL's default of 500."""
    return max(1, min(500, total_steps // 10))
