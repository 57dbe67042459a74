"""The knobs `committee.<member>`: which model judges as each remote member of a committee."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from oven_controller.protocol.judge_spec import JudgeSpec, actuator_of
from oven_learner.actuators import Actuators
from oven_learner.rewards.live_judges import LiveJudges

Probe = Callable[[str, JudgeSpec], Future[str]]
"""Begins to ask another model in a member's process."""


class MemberOffers:
    """Models that an operator offers to one member."""

    def __init__(self, member: str, judges: LiveJudges, probe: Probe) -> None:
        self._member, self._judges, self._probe = member, judges, probe

    def probe(self, judge: JudgeSpec) -> Future[str]:
        """Begin to ask the model a question: empty if it answered, else why not."""
        return self._probe(self._member, judge)

    def add(self, judge: JudgeSpec) -> tuple[str, ...]:
        """Make it a choice; all that there are now."""
        self._judges.offer(self._member, judge)
        return self._judges.choices(self._member)


def announce_judges(
    actuators: Actuators, judges: LiveJudges, choose: Callable[[str, str], object], probe: Probe
) -> None:
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
            offers=MemberOffers(member, judges, probe),
        )
