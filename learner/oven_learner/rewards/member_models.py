"""The models that each remote member can use, and a committee's interface to its remote members. The models of a member
are the choices of the knob `committee.<member>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_core.protocol.judge_spec import OFF, JudgeSpec
from oven_learner.rewards.verdicts import Cost, Verdict

CONFIGURED = "configured"
"""Stands for the identity of a member's configured model if the committee does not know which model that is."""
Answers: TypeAlias = dict[str, list[Verdict]]
"""Member → its verdicts, one per group."""


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """The model that a request asks for. A `judge` of None means the member's configured model."""

    judge: JudgeSpec | None = None
    swap: int = 0
    """Number of the member's swaps so far. When it rises, the member resets the state of its judge."""


class MemberClient(Protocol):
    """A committee's interface to its remote members, implemented by `RemoteMembers`."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members."""

    @property
    def deadline_s(self) -> float:
        """Seconds to wait for an answer."""

    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        """The members' configured models, as far as known."""

    @property
    def health(self) -> dict[str, JudgeHealth]:
        """The latest report of each member on its judge, if it sent one."""

    def ask(self, requests: Sequence[ScoreRequest], models: Mapping[str, RequestedModel]) -> Answers:
        """Return each member's verdicts on the requests, in the same order, by the given model."""

    def probe(self, member: str, model: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        """Send another model a test question. The result is an empty string if it returned a verdict, otherwise the
        reason for the failure. `is_new` means that the member's process may still be starting."""

    def join(self, member: str) -> None:
        """Add a member."""

    def leave(self, member: str) -> None:
        """Remove a member."""

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        """Return the member's reasons by completion id for a group of its last requests, and forget them."""

    def take_cost(self) -> Cost:
        """Return the cost since the last call."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _Member:
    """The models of one remote member."""

    models: dict[str, JudgeSpec | None]
    """Models by identity, in the order of the choices. None means the configured model."""
    active: str
    """Identity of the current model, or OFF."""
    swap_count: int
    configured: JudgeSpec | None


class MemberModels:
    """The current and alternative models of each remote member. After a choice, later requests name the new model.
    `members` maps names to configured models, or to None if unknown. Methods raise UnknownNameError for an
    unknown member."""

    def __init__(self, members: Mapping[str, JudgeSpec | None]) -> None:
        self._members: dict[str, _Member] = {}
        for member, model in members.items():
            self.add(member, model)

    def add(self, member: str, model: JudgeSpec | None) -> None:
        """Add a member with its configured model."""
        identity = model.identity if model is not None else CONFIGURED
        previous = self._members.get(member)
        swap_count = previous.swap_count + 1 if previous is not None else 0  # a higher count resets the judge's state
        self._members[member] = _Member({identity: None}, identity, swap_count, model)

    def leave(self, member: str) -> None:
        """Remove a member from the vote. Its entry stays, with OFF as the only choice, in case it joins again."""
        entry = self._find_member(member)
        entry.models, entry.active = {}, OFF

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members."""
        return tuple(self._members)

    def active(self, member: str) -> str:
        """Return the identity of the member's model, or OFF."""
        return self._find_member(member).active

    def choices(self, member: str) -> tuple[str, ...]:
        """Return the member's choices, including OFF."""
        return (*self._find_member(member).models, OFF)

    def is_muted(self, member: str) -> bool:
        """Whether this is a remote member that is off."""
        return member in self._members and self._members[member].active == OFF

    def requested_models(self, members: Sequence[str]) -> dict[str, RequestedModel]:
        """Return the model that requests to each member must name."""
        entries = {member: self._members[member] for member in members}
        return {
            member: RequestedModel(entry.models[entry.active], entry.swap_count) for member, entry in entries.items()
        }

    def choose(self, member: str, identity: str) -> None:
        """Choose the member's model, starting with the next batch. Raises ConfigError if it is not a choice."""
        entry = self._find_member(member)
        if identity != OFF and identity not in entry.models:
            raise ConfigError(
                f"{identity!r} is not one of the models of {member}, {', '.join(self.choices(member))}; offer it "
                f"first: `oven-controller judge swap {member} …`"
            )
        if identity != entry.active:
            entry.active = identity
            if identity != OFF:  # switching a member on again also counts as a swap
                entry.swap_count += 1

    def offer(self, member: str, model: JudgeSpec) -> str:
        """Add the model to the member's choices, and return its identity. If a choice has the same identity, for
        example with another API key, the new one replaces it."""
        entry = self._find_member(member)
        if model != entry.configured:  # requests do not need to name the configured model
            entry.models[model.identity] = model
        return model.identity

    def _find_member(self, member: str) -> _Member:
        if member not in self._members:
            raise UnknownNameError("committee member", member, self._members)
        return self._members[member]
