"""The knobs of GRPO's anchor: `grpo.beta`, how hard the KL term pulls, and `teacher.active`, where to."""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.teachers.registry import Teachers

BETA, TEACHER = "grpo.beta", "teacher.active"
ORDER = "weakest first"
"""The unit of `teacher.active`: what the order of its choices means."""


def announce_anchor(
    actuators: Actuators, trainer: Any, teachers: Teachers | None, beta_bounds: tuple[float, float]
) -> None:
    """Registers both where there is a reference model to pull towards, and nothing where there is none.

    `beta_bounds` are multiples of the user's own β. A change of β acts on the next step's loss; the reference's
    log-probabilities that wait in a buffer hold for any β above 0. `teacher.active` needs two teachers that are
    loaded; refused ones are choices too, so that asking for one is answered with its reason.
    """
    if not _is_grpo(trainer) or trainer.ref_model is None or not trainer.beta > 0:
        return
    own = float(trainer.args.beta or trainer.beta)
    actuators.scalar(
        BETA,
        lambda: float(trainer.beta),
        lambda value: setattr(trainer, "beta", value),
        low=own * beta_bounds[0],
        high=own * beta_bounds[1],
        scale="log",
        unit="× KL per token, in the loss",
    )
    if teachers is not None and len(teachers) > 1:
        actuators.choice(TEACHER, lambda: teachers.active, teachers.swap, teachers.names, unit=ORDER)


def _is_grpo(trainer: Any) -> bool:
    """By name, so that a plain Trainer's process need not import TRL. DPO's beta and reference are something else."""
    return any(cls.__name__ == "GRPOTrainer" for cls in type(trainer).__mro__)
