"""The knobs of a committee: its weights and the models of its remote members. Knobs change as members join or leave."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from oven_core.errors import ConfigError
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_learner.actuators import Actuators
from oven_learner.rewards.committee import Committee
from oven_runs.log.committee_view import WEIGHTS


def register_committee_knobs(actuators: Actuators, committee: Committee) -> None:
    """Register `reward.weights` if there are several members, and `committee.<member>` for each remote member."""
    _register_weights(actuators, committee)
    actuators.membership = CommitteeMembership(committee)
    for member in committee.judges.members:
        _register_model(actuators, committee, member)
    if committee.calibration is not None:
        committee.calibration.register_knob(actuators)


class CommitteeMembership:
    """Adds, changes and removes a committee's members. Implements `Membership` (oven_learner.actuators). `offer`, `add`
    and `remove` return the names of the changed knobs."""

    def __init__(self, committee: Committee) -> None:
        self._committee = committee

    def probe(self, member: str, judge: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        """Send a model a test question in the member's process, which may still be starting if `is_new`."""
        if self._committee.remote is None:
            raise ConfigError("the committee has no connection to remote members; create it with convene()")
        return self._committee.remote.probe(member, judge, is_new=is_new)

    def offer(self, actuators: Actuators, member: str, judge: JudgeSpec) -> tuple[str, ...]:
        """Make the model one of the member's choices."""
        self._committee.judges.offer(member, judge)
        return self._register_or_update_model(actuators, member)

    def add(self, actuators: Actuators, member: str, judge: JudgeSpec, share: float) -> tuple[str, ...]:
        """Add a member with this share of the total weight."""
        self._committee.add_member(member, judge, share)
        return (*_register_weights(actuators, self._committee), *self._register_or_update_model(actuators, member))

    def remove(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        """Remove a member. The others get its weight. Its knob stays, with OFF as the only choice."""
        self._committee.remove_member(member)
        return (*_register_weights(actuators, self._committee), *self._register_or_update_model(actuators, member))

    def __contains__(self, member: str) -> bool:
        return self._committee.remote is not None and member in self._committee.remote.members

    def _register_or_update_model(self, actuators: Actuators, member: str) -> tuple[str, ...]:
        name = actuator_of(member)
        if name in actuators:
            actuators.update(name, choices=self._committee.judges.choices(member))
        else:
            _register_model(actuators, self._committee, member)
        return (name,)


def _register_weights(actuators: Actuators, committee: Committee) -> tuple[str, ...]:
    """Register or update `reward.weights` for the current members. Return its name if it is registered."""
    if WEIGHTS in actuators:
        actuators.update(WEIGHTS)
    elif len(committee.members) >= 2:
        actuators.simplex(WEIGHTS, lambda: committee.weights, committee.set_weights, moves_own_metric=True)
    return (WEIGHTS,) if WEIGHTS in actuators else ()


def _register_model(actuators: Actuators, committee: Committee, member: str) -> None:
    """Register the member's model as a knob. It changes the reward, so only held-out metrics can judge a change."""
    actuators.choice(
        actuator_of(member),
        partial(committee.judges.active, member),
        partial(committee.choose_judge, member),
        committee.judges.choices(member),
        unit="model",
        moves_own_metric=True,
    )
