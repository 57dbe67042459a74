"""The knobs `committee.<member>`: which model judges as each remote member of a committee; and members that come and go
while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from oven_core.errors import ConfigError
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_learner.actuators import Actuators
from oven_learner.rewards.live_judges import LiveJudges
from oven_runs.log.committee_view import WEIGHTS


class Asked(Protocol):
    """The remote members of a committee, as far as operators' words on them need it."""

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Begin to ask another model a question."""


class Swappable(Protocol):
    """A committee whose judges can be swapped (`Committee`)."""

    @property
    def remote(self) -> Asked | None:
        """None: it asks no one over the bus."""

    @property
    def judges(self) -> LiveJudges:
        """Which model judges as each remote member."""

    @property
    def members(self) -> tuple[str, ...]:
        """All, rules among them."""

    @property
    def weights(self) -> dict[str, float]:
        """Member → its share."""

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Count members by these shares."""

    def choose_judge(self, member: str, identity: str) -> None:
        """Have another model judge as this member."""

    def add_member(self, member: str, judge: JudgeSpec, share: float) -> None:
        """Have another remote member."""

    def remove_member(self, member: str) -> None:
        """Let one go."""


class CommitteeSeats:
    """`Seats` (oven_learner.actuators) of one committee."""

    def __init__(self, committee: Swappable) -> None:
        self._committee = committee

    def probe(self, member: str, judge: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Begin to ask a model a question, in the member's process."""
        if self._committee.remote is None:
            raise ConfigError("the committee asks no one over the bus")
        return self._committee.remote.probe(member, judge, joins=joins)

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Make the model a choice of the member's."""
        self._committee.judges.offer(member, judge)
        return self._announced(actuators, member)

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Have another member, with this share of the whole weight."""
        self._committee.add_member(member, judge, share)
        return (*announce_weights(actuators, self._committee), *self._announced(actuators, member))

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Let a member go; the others have its weight. Its knob stays, and can only be off."""
        self._committee.remove_member(member)
        return (*announce_weights(actuators, self._committee), *self._announced(actuators, member))

    def __contains__(self, member: str) -> bool:
        return self._committee.remote is not None and member in self._committee.remote.members

    def _announced(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        name = actuator_of(member)
        if name in actuators:
            actuators.update(name, choices=self._committee.judges.choices(member))
        else:
            _register(actuators, self._committee, member)
        return (name,)


def announce_weights(actuators: Actuators, committee: Swappable) -> tuple[str, ...]:
    """`reward.weights` with the members that there are now, where there is something to weigh; its name, if so."""
    if WEIGHTS in actuators:
        actuators.update(WEIGHTS)
    elif len(committee.members) >= 2:
        actuators.simplex(WEIGHTS, lambda: committee.weights, committee.set_weights, moves_own_metric=True)
    return (WEIGHTS,) if WEIGHTS in actuators else ()


def announce_judges(actuators: Actuators, committee: Swappable) -> None:
    """A choice for each remote member, of the models that were probed and OFF."""
    actuators.seats = CommitteeSeats(committee)
    for member in committee.judges.members:
        _register(actuators, committee, member)


def _register(actuators: Actuators, committee: Swappable, member: str) -> None:
    """Another judge has another idea of the reward, so a change moves the reward itself, and is judged by a held-out
    metric alone."""
    actuators.choice(
        actuator_of(member),
        partial(committee.judges.active, member),
        partial(committee.choose_judge, member),
        committee.judges.choices(member),
        unit="model",
        moves_own_metric=True,
    )
