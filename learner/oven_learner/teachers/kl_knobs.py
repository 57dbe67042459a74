"""The knobs of GRPO's anchor: `grpo.beta`, how hard the KL term pulls, and `teacher.active`, where to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from oven_learner.actuators import Actuators
from oven_learner.teachers.named_teachers import NamedTeachers
from oven_learner.teachers.registry import Teachers, has_reference

BETA, TEACHER = "grpo.beta", "teacher.active"
ORDER = "weakest first"
"""The unit of `teacher.active`: what the order of its choices means."""


FROM_ZERO = 0.04
"""What the bounds are multiples of where the user's own β is 0: Shao et al. 2024 (arXiv 2402.03300), §4.2."""


def announce_anchor(
    actuators: Actuators,
    trainer: Any,
    teachers: Teachers | None,
    beta_bounds: tuple[float, float],
    client: Callable[[], Announcing | None] = lambda: None,
) -> None:
    """Registers both where there is a reference model to pull towards, and nothing where there is none.

    With PEFT there always is one: the policy without its adapter. `beta_bounds` are multiples of the user's own β; from
    a β of 0 it may be raised to the upper of them times FROM_ZERO. A change of β acts on the next step's loss; the
    reference's log-probabilities that wait in a buffer hold for any β above 0, and where there are none the completions
    are made anew. `teacher.active` needs two teachers that are loaded; refused ones are choices too, so that asking for
    one is answered with its reason. A teacher that is added later becomes a choice, which `client` announces.
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
    """Registers `grpo.beta` within `beta_bounds` times the user's `own`."""
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
    """The client of a training under way, as far as an actuator that comes or changes needs it."""

    actuators: Actuators

    def announce(self, name: str) -> None:
        """Say at the next step boundary what the actuator is now."""


def announce_teachers(
    actuators: Actuators,
    teachers: NamedTeachers[Any],
    client: Callable[[], Announcing | None],
    taught: Callable[[], bool] = lambda: True,
) -> None:
    """Registers `teacher.active` where two or more are loaded. One that is added later becomes a choice in the training
    under way, of `client()`, which then announces it. `taught`: whether the loss asks a teacher at all."""

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
    """By name, so that a plain Trainer's process need not import TRL. DPO's beta and reference are something else."""
    return any(cls.__name__ == "GRPOTrainer" for cls in type(trainer).__mro__)
