"""The actuators of a PolicyTrainer, with the names of TRL's GRPOTrainer."""

from __future__ import annotations

from typing import Protocol

from oven_learner.actuators import Actuators
from oven_learner.client.loop_client import LoopClient
from oven_learner.hf.knobs.scalars import UserValues
from oven_learner.policies.policy_teachers import PolicyTeachers
from oven_learner.policies.scoring import Scoring
from oven_learner.policies.trainer_config import PolicyTrainerConfig
from oven_learner.teachers.kl_knobs import announce_beta, announce_teachers


class Trainer(Protocol):
    """The parts of a trainer that its actuators use."""

    config: PolicyTrainerConfig
    teachers: PolicyTeachers
    scoring: Scoring
    beta: float
    epsilon: tuple[float, float]
    client: LoopClient | None


def announce(trainer: Trainer, actuators: Actuators) -> None:
    """Register the actuators: `grpo.beta` with a teacher, `teacher.active` from two teachers on, `grpo.epsilon` if
    samples are reused, and a committee's weights. `connect` registers the learning rate and the clip."""

    def set_beta(value: float) -> None:
        trainer.beta = value

    def set_low(value: float) -> None:
        trainer.epsilon = (value, trainer.epsilon[1] if apart else value)

    def set_high(value: float) -> None:
        trainer.epsilon = (trainer.epsilon[0], value)

    config = trainer.config
    if len(trainer.teachers):
        unit = "× KL per step, in the loss"
        announce_beta(actuators, config.beta, lambda: trainer.beta, set_beta, config.beta_bounds, unit)
        announce_teachers(actuators, trainer.teachers, lambda: trainer.client)
    apart = config.epsilon_high is not None and config.epsilon_high != config.epsilon
    if config.updates_per_batch > 1:
        own, unit = UserValues(), "ratio below 1" if apart else "ratio around 1"
        own.scalar(actuators, "grpo.epsilon", lambda: trainer.epsilon[0], set_low, unit=unit, most=1.0)
        if apart:
            own.scalar(actuators, "grpo.epsilon_high", lambda: trainer.epsilon[1], set_high, unit="ratio above 1")
    trainer.scoring.announce(actuators)
