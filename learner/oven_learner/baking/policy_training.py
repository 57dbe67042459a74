"""Anything but text: GRPO over a Policy, made of what a script says of its prompts, judges and teachers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.baking.oven import Oven
from oven_learner.baking.own_stack import OwnStack, Place, within
from oven_learner.baking.step_calls import StepCalls
from oven_learner.baking.trainer_arguments import check_names, save_steps
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.completions.redaction import Redact
from oven_learner.link.find_controller import Connection
from oven_learner.policies import Policy, PolicyTrainer, PolicyTrainerConfig, checkpoint
from oven_learner.rewards import Committee, ModelDescription, convene
from oven_learner.rewards.rule_members import RewardFunction
from oven_learner.teachers import TeacherConfig
from oven_runs.home import relaunch

log = logging.getLogger("oven.learner")

BETA = 0.05
"""Of the KL term per coordinate, where there is a teacher and no `beta` is given."""
CALLED = {"conditions_per_step": "prompts_per_step", "max_steps": "total_steps"}
"""Fields of PolicyTrainerConfig that have another name in `bake`."""


class SteeredTrainer(PolicyTrainer):
    """A PolicyTrainer as an Oven drives it: in the run at `place`."""

    def __init__(self, place: Place, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._place, self._calls = place, StepCalls()
        self._announced: Callable[[], object] = lambda: None

    redact: Redact | None = None
    """What completions go through before they are shown."""

    @property
    def trainer(self) -> PolicyTrainer:
        return self

    def when_announced(self, call: Callable[[], object]) -> None:
        self._announced = call

    def between_steps(self, call: Callable[[], object]) -> None:
        self._calls.ask(call)

    def train(self, **options: Any) -> None:
        with self._calls.during_training(), within(self._place):
            self._resume()
            super().train(**{"recipe": "bake", "redact": self.redact, **options})

    def _resume(self) -> None:
        """Continue from the newest checkpoint where the run is resumed; teachers may have been registered by now."""
        if self.output is None or not os.environ.get(relaunch.RESUME_FROM):
            return
        found = checkpoint.newest(self.output)
        if found is not None:
            checkpoint.load(self, found)
        else:
            log.warning("resume: %s holds no complete checkpoint of this run; training begins anew", self.output)

    def update(self, number: int, conditions: Sequence[Any]) -> dict[str, float]:
        """Between two steps: what other threads asked for, and then the step."""
        if self.client is not None:
            self.client.while_held = self._calls.make
        self._announced()
        self._calls.make()
        return super().update(number, conditions)


def arguments(group_size: int, prompts_per_step: int, total_steps: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of PolicyTrainerConfig. Raises as `check_names` does."""
    check_names(given, (field.name for field in fields(PolicyTrainerConfig)), CALLED, "PolicyTrainerConfig")
    return {
        "max_steps": total_steps,
        "group_size": group_size,
        "conditions_per_step": prompts_per_step,
        "save_steps": save_steps(total_steps),
        **given,
    }


@dataclass(frozen=True, kw_only=True)
class PolicyTraining:
    """What `bake` was asked for, before there is a run."""

    model: Policy
    prompts: Sequence[Any]
    rules: Mapping[str, RewardFunction]
    teachers: Sequence[TeacherConfig]
    teacher: str | None
    evaluate: Callable[[], Measured] | None
    metrics: tuple[MetricSpec, ...]
    redact: Redact | None
    said: Mapping[str, Any]
    """What judges are told of the model: fields of ModelDescription."""
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.model, Policy):
            raise ConfigError(
                f"a {self.said.get('modality', 'model')} model is trained as a Policy, and this is a "
                f"{type(self.model).__name__}: give it `sample` and `step_log_probs` (oven_learner.policies)"
            )

    def oven(self, place: Place, stack: OwnStack | None) -> Oven:
        """The training, for the run at `place`. Raises ConfigError, UnknownNameError, TeacherRefusedError."""
        with within(place):
            committee, settings = self._committee(), Connection.find().committee
        beta = self.arguments.get("beta", BETA if self.teachers else 0.0)
        trainer = SteeredTrainer(
            place,
            self.model,
            committee,
            self.prompts,
            PolicyTrainerConfig(**{**self.arguments, "beta": beta}),
            teachers={config.name: config for config in self.teachers},
            teacher=self.teacher or "",
            evaluate=self.evaluate,
            metrics=self.metrics,
            output_dir=place.folder / "checkpoints" if place.folder.is_dir() else None,
        )
        trainer.redact = self.redact
        return Oven(trainer, place, stack, committee, settings)

    def _committee(self) -> Committee:
        described = ModelDescription.from_model(self.model, **self.said)
        return convene(self.rules, description=described, seed=self.arguments.get("seed", 0))
