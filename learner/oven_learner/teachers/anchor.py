"""`teacher.active`: which of the loaded reference models GRPO's KL term pulls to."""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.teachers.registry import Teachers

TEACHER = "teacher.active"
ORDER = "weakest first"
"""The unit of `teacher.active`: what the order of its choices means."""


def announce_teachers(actuators: Actuators, trainer: Any, teachers: Teachers | None) -> None:
    """Needs a reference model that pulls, and two teachers that are loaded; refused ones are choices too, so that
    asking for one is answered with its reason."""
    if teachers is None or len(teachers) < 2 or trainer.ref_model is None or not trainer.beta > 0:
        return
    actuators.choice(TEACHER, lambda: teachers.active, teachers.swap, teachers.names, unit=ORDER)
