"""Builds the training that `bake` runs for a Policy: a PolicyTrainer with an Oven as its handle."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.baking.bake_arguments import BakeArguments, check_config_names, save_steps
from oven_learner.baking.child_stack import ChildStack, StackAddress, stack_environment
from oven_learner.baking.training_handle import Oven
from oven_learner.baking.training_thread_calls import TrainingThreadCalls
from oven_learner.completions.sample_message import Redact
from oven_learner.link.find_controller import Connection
from oven_learner.policies import Policy, PolicyTrainer, PolicyTrainerConfig, checkpoint
from oven_learner.rewards import ModelDescription, convene
from oven_runs.home import relaunch

log = logging.getLogger("oven.learner")

DEFAULT_BETA = 0.05
"""Default weight of the KL term per coordinate, if there is a teacher."""
RENAMED_FIELDS = {"conditions_per_step": "prompts_per_step", "max_steps": "total_steps"}
"""Field of PolicyTrainerConfig → its name in `bake`."""


class OvenPolicyTrainer(PolicyTrainer):
    """A PolicyTrainer that an Oven controls, for the run at `address`."""

    redact: Redact | None = None
    """A function applied to prompts and completions before the monitor shows them."""

    def __init__(self, address: StackAddress, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._address, self._calls = address, TrainingThreadCalls()
        self._on_announced: Callable[[], object] = lambda: None

    @property
    def trainer(self) -> PolicyTrainer:
        return self

    def set_announcement_callback(self, call: Callable[[], object]) -> None:
        self._on_announced = call

    def run_between_steps(self, call: Callable[[], object]) -> None:
        self._calls.submit(call)

    def train(self, **options: Any) -> None:
        with self._calls.during_training(), stack_environment(self._address):
            self._resume()
            super().train(**{"recipe": "bake", "redact": self.redact, **options})

    def _resume(self) -> None:
        """Load the newest checkpoint if the run is resumed. All teachers must already be registered."""
        if self.output is None or not os.environ.get(relaunch.RESUME_FROM):
            return
        if (newest := checkpoint.newest(self.output)) is not None:
            checkpoint.load(self, newest)
        else:
            log.warning("resume: %s has no complete checkpoint of this run; training starts over", self.output)

    def update(self, batch_number: int, conditions: Sequence[Any]) -> dict[str, float]:
        """Run the waiting calls from other threads, and then update the weights."""
        if self.client is not None:
            self.client.while_held = self._calls.run_waiting_calls
        self._on_announced()
        self._calls.run_waiting_calls()
        return super().update(batch_number, conditions)


def config_args(group_size: int, prompts_per_step: int, total_steps: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return PolicyTrainerConfig's arguments, with the user's `extra` ones. Raises the same errors as
    `check_config_names`."""
    check_config_names(
        extra, (field.name for field in fields(PolicyTrainerConfig)), RENAMED_FIELDS, "PolicyTrainerConfig"
    )
    return {
        "max_steps": total_steps,
        "group_size": group_size,
        "conditions_per_step": prompts_per_step,
        "save_steps": save_steps(total_steps),
        **extra,
    }


@dataclass(frozen=True, kw_only=True)
class PolicyTraining(BakeArguments):
    """The training that `bake` runs for a Policy."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, Policy):
            raise ConfigError(
                f"a {self.model_details.get('modality', 'model')} model must be a Policy, but this is a "
                f"{type(self.model).__name__}; define `sample` and `step_log_probs` (oven_learner.policies)"
            )

    def build(self, address: StackAddress, stack: ChildStack | None) -> Oven:
        """Build the trainer for the run at `address`. Raises ConfigError, UnknownNameError or TeacherRefusedError."""
        description = ModelDescription.from_model(self.model, **self.model_details)
        with stack_environment(address):
            committee = convene(self.rules, description=description, seed=self.config_args.get("seed", 0))
            settings = Connection.find().committee
        beta = self.config_args.get("beta", DEFAULT_BETA if self.teachers else 0.0)
        trainer = OvenPolicyTrainer(
            address,
            self.model,
            committee,
            self.prompts,
            PolicyTrainerConfig(**{**self.config_args, "beta": beta}),
            teachers={config.name: config for config in self.teachers},
            teacher=self.teacher or "",
            evaluate=self.evaluate,
            metrics=self.metrics,
            output_dir=address.folder / "checkpoints" if address.folder.is_dir() else None,
        )
        trainer.redact = self.redact
        return Oven(trainer, address, stack, committee, settings)
