"""The actuators of GRPO's KL term: its weight, `grpo.beta`, and its reference model, `teacher.active`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from oven_learner.actuators import Actuators
from oven_learner.teachers.registry import NamedTeachers, Teachers, has_reference

BETA, TEACHER = "grpo.beta", "teacher.active"
ORDER = "weakest first"
"""The unit of `teacher.active`: the order of its choices."""

FROM_ZERO = 0.04
"""Base of the bounds if the user's β is 0, from Shao et al. 2024 (arXiv 2402.03300), §4.2."""


def announce_anchor(
    actuators: Actuators,
    trainer: Any,
    teachers: Teachers | None,
    beta_bounds: tuple[float, float],
    client: Callable[[], Announcing | None] = lambda: None,
) -> None:
    """Register both actuators if there is a reference model. With PEFT there is always one, the policy without its
    adapter.

    A change of β affects the next step's loss. Buffered reference log-probabilities stay valid for any β above 0. If
    there are none, the completions are generated again.
    """
    grpo = _is_grpo(trainer)
    if grpo and has_reference(trainer):
        own = float(trainer.args.beta or trainer.beta)
        announce_beta(actuators, own, lambda: float(trainer.beta), lambda value: _set_beta(trainer, value), beta_bounds)
    if teachers is not None:
        announce_teachers(actuators, teachers, client, lambda: not grpo or has_reference(trainer))


def announce_beta(
    actuators: Actuators,
    own: float,
    read: Callable[[], float],
    write: Callable[[float], object],
    beta_bounds: tuple[float, float],
    unit: str = "× KL per token, in the loss",
) -> None:
    """Register `grpo.beta` within `beta_bounds` times the user's `own`. If that is 0, FROM_ZERO sets the upper one."""
    actuators.scalar(
        BETA,
        read,
        write,
        low=own * beta_bounds[0],
        high=(own or FROM_ZERO) * beta_bounds[1],
        scale="log" if own else "linear",
        unit=unit,
        moves_own_metric=True,
    )


class Announcing(Protocol):
    """The methods of a training client that dynamic actuators need."""

    actuators: Actuators

    def announce(self, name: str) -> None:
        """Announce the actuator's current state at the next step boundary."""


def announce_teachers(
    actuators: Actuators,
    teachers: NamedTeachers[Any],
    client: Callable[[], Announcing | None],
    taught: Callable[[], bool] = lambda: True,
) -> None:
    """Register `teacher.active` if two or more teachers are loaded and the loss uses one (`taught`).

    Refused teachers are choices too, so that requests for them are answered with the reason. A teacher added later
    becomes a choice, announced by the running training's `client()`.
    """

    def offer(registry: Actuators) -> bool:
        if TEACHER in registry:
            registry.update(TEACHER, choices=teachers.names)
        elif len(teachers) > 1 and taught():
            registry.choice(TEACHER, lambda: teachers.active, teachers.swap, teachers.names, unit=ORDER)
        return TEACHER in registry

    def added() -> None:
        running = client()
        if offer(running.actuators if running is not None else actuators) and running is not None:
            running.announce(TEACHER)

    offer(actuators)
    teachers.added = added


def _set_beta(trainer: Any, value: float) -> None:
    waiting = trainer._buffered_inputs or ()
    if value and any("ref_per_token_logps" not in batch for batch in waiting):
        trainer._buffered_inputs = None
    trainer.beta = value


def _is_grpo(trainer: Any) -> bool:
    """Check by class name, so that a process with a plain Trainer does not import TRL. DPO's beta and reference
    differ."""
    return any(cls.__name__ == "GRPOTrainer" for cls in type(trainer).__mro__)
