"""The knobs `committee.<member>`: which model judges as each remote member of a committee."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oven_controller.protocol.judge_models import actuator_of
from oven_learner.actuators import Actuators
from oven_learner.rewards.live_judges import LiveJudges


def announce_judges(actuators: Actuators, judges: LiveJudges, choose: Callable[[str, str], object]) -> None:
    """A choice each, of the models that were probed and OFF. Another judge has another idea of the reward, so a change
    moves the reward itself, and is judged by a held-out metric alone."""
    for member in judges.members:
        actuators.choice(
            actuator_of(member),
            partial(judges.active, member),
            partial(choose, member),
            judges.choices(member),
            unit="model",
            moves_own_metric=True,
        )
