"""The knobs of GRPO's KL term: its weight `grpo.beta`, and its reference model `teacher.active`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from oven_learner import trainer_internals
from oven_learner.actuators import Actuators
from oven_learner.teachers.reference_model import has_reference
from oven_learner.teachers.registry import NamedTeachers, Teachers
from oven_learner.trainer_internals import is_a

BETA_KNOB, TEACHER_KNOB = "grpo.beta", "teacher.active"
ORDER = "weakest first"
"""Unit of `teacher.active`, which describes the order of its choices."""
DEFAULT_BETA = 0.04
"""The β that determines the upper bound if the user's β is 0, from Shao et al. 2024 (arXiv 2402.03300, section 4.2)."""


def register_kl_knobs(
    actuators: Actuators,
    trainer: Any,
    teachers: Teachers | None,
    beta_bounds: tuple[float, float],
    client: Callable[[], Announcer | None] = lambda: None,
) -> None:
    """Register `grpo.beta` and `teacher.active` if there is a reference model. With PEFT there is always one, the
    policy without its adapter. A change of β affects the next step's loss. Buffered reference log-probabilities stay
    valid for any β above 0. If a buffered batch has none, its completions are generated again. `client` returns the
    running training's client, or None before training."""
    is_grpo = is_a(trainer, "GRPOTrainer")  # the β and reference of a DPOTrainer are different
    if is_grpo and has_reference(trainer):
        user_beta = float(trainer.args.beta or trainer.beta)
        register_beta(
            actuators, user_beta, lambda: float(trainer.beta), lambda value: _set_beta(trainer, value), beta_bounds
        )
    if teachers is not None:
        register_teacher_knob(actuators, teachers, client, lambda: not is_grpo or has_reference(trainer))


def register_beta(
    actuators: Actuators,
    user_beta: float,
    read: Callable[[], float],
    write: Callable[[float], object],
    beta_bounds: tuple[float, float],
    unit: str = "× KL per token, in the loss",
) -> None:
    """Register `grpo.beta` within `beta_bounds` times `user_beta`. DEFAULT_BETA replaces 0 in the upper bound."""
    low, high = user_beta * beta_bounds[0], (user_beta or DEFAULT_BETA) * beta_bounds[1]
    scale: Literal["log", "linear"] = "log" if user_beta else "linear"
    actuators.scalar(BETA_KNOB, read, write, low=low, high=high, scale=scale, unit=unit, moves_own_metric=True)


class Announcer(Protocol):
    """The part of a training client that announces changed knobs."""

    actuators: Actuators

    def announce(self, name: str) -> None:
        """Announce the knob's current state at the next step boundary."""


def register_teacher_knob(
    actuators: Actuators,
    teachers: NamedTeachers[Any],
    client: Callable[[], Announcer | None],
    uses_teacher: Callable[[], bool] = lambda: True,
) -> None:
    """Register `teacher.active` if two or more teachers are loaded and the loss uses one (`uses_teacher()`). Refused
    teachers are also choices, so that requests for them are answered with the reason. A teacher that is added later
    becomes a choice, and the `client()` of the running training announces it."""

    def offer(registry: Actuators) -> bool:
        if TEACHER_KNOB in registry:
            registry.update(TEACHER_KNOB, choices=teachers.names)
        elif len(teachers) > 1 and uses_teacher():
            registry.choice(TEACHER_KNOB, lambda: teachers.active, teachers.swap, teachers.names, unit=ORDER)
        return TEACHER_KNOB in registry

    def on_add() -> None:
        running_client = client()
        is_offered = offer(running_client.actuators if running_client is not None else actuators)
        if is_offered and running_client is not None:
            running_client.announce(TEACHER_KNOB)

    offer(actuators)
    teachers.on_add = on_add


def _set_beta(trainer: Any, value: float) -> None:
    """Set β, and drop buffered batches without the log-probabilities that the new value needs."""
    if value and any("ref_per_token_logps" not in batch for batch in trainer_internals.buffered_batches(trainer)):
        trainer_internals.drop_buffer(trainer)
    trainer.beta = value
