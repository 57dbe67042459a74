"""The actuators `committee.<member>`, which select each remote member's model, and joining and leaving members."""

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


class RemoteJudges(Protocol):
    """The part of the remote members that operator commands need."""

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Send another model a test question."""


class Swappable(Protocol):
    """A committee whose judges can be swapped (`Committee`)."""

    @property
    def remote(self) -> RemoteJudges | None:
        """None: there are no remote members."""

    @property
    def judges(self) -> LiveJudges:
        """The model of each remote member."""

    @property
    def members(self) -> tuple[str, ...]:
        """All members, including rules."""

    @property
    def weights(self) -> dict[str, float]:
        """Member → its share."""

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the shares."""

    def choose_judge(self, member: str, identity: str) -> None:
        """Let another model judge as this member."""

    def add_member(self, member: str, judge: JudgeSpec, share: float) -> None:
        """Add a remote member."""

    def remove_member(self, member: str) -> None:
        """Remove a remote member."""


class CommitteeSeats:
    """`Seats` (oven_learner.actuators) of one committee."""

    def __init__(self, committee: Swappable) -> None:
        self._committee = committee

    def probe(self, member: str, judge: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Send a model a test question, in the member's process."""
        if self._committee.remote is None:
            raise ConfigError("the committee has no connection to remote members")
        return self._committee.remote.probe(member, judge, joins=joins)

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Make the model one of the member's choices."""
        self._committee.judges.offer(member, judge)
        return self._announced(actuators, member)

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Add a member with this share of the total weight."""
        self._committee.add_member(member, judge, share)
        return (*announce_weights(actuators, self._committee), *self._announced(actuators, member))

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Remove a member; the others share its weight. Its actuator stays, with OFF as the only choice."""
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
    """Register or update `reward.weights` for the current members; return its name, if there are at least two."""
    if WEIGHTS in actuators:
        actuators.update(WEIGHTS)
    elif len(committee.members) >= 2:
        actuators.simplex(WEIGHTS, lambda: committee.weights, committee.set_weights, moves_own_metric=True)
    return (WEIGHTS,) if WEIGHTS in actuators else ()


def announce_judges(actuators: Actuators, committee: Swappable) -> None:
    """Register a choice for each remote member: its tested models and OFF."""
    actuators.seats = CommitteeSeats(committee)
    for member in committee.judges.members:
        _register(actuators, committee, member)


def _register(actuators: Actuators, committee: Swappable, member: str) -> None:
    """Register the choice. A change of judge changes the reward itself, so only a held-out metric can judge it."""
    actuators.choice(
        actuator_of(member),
        partial(committee.judges.active, member),
        partial(committee.choose_judge, member),
        committee.judges.choices(member),
        unit="model",
        moves_own_metric=True,
    )
