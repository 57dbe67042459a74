"""The current and alternative models of each remote member (the choices of `committee.<member>`), and a committee's
interface to its remote members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_core.protocol.judge_spec import OFF, JudgeSpec
from oven_learner.rewards.scores import Cost, Verdict

CONFIGURED = "configured"
"""Identity of a member's first model if the committee does not know it."""
Answers: TypeAlias = dict[str, list[Verdict]]
"""Each member's verdicts, one per group."""


@dataclass(frozen=True, slots=True)
class Named:
    """The model that a request names. A `judge` of None means the configured model."""

    judge: JudgeSpec | None = None
    swap: int = 0


class Asker(Protocol):
    """A committee's interface to its remote members, implemented by `RemoteMembers`."""

    @property
    def members(self) -> tuple[str, ...]:
        """The members' names."""

    @property
    def deadline_s(self) -> float:
        """Timeout of an answer in seconds."""

    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        """Each member's configured model, where known."""

    @property
    def health(self) -> dict[str, JudgeHealth]:
        """The latest report on each member's judge, for members that sent one."""

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> Answers:
        """Return each member's verdicts on the requests, in the same order, by the named model."""

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Send another model a test question. The result is empty if it gave a verdict, otherwise the reason."""

    def join(self, member: str) -> None:
        """Add a member."""

    def leave(self, member: str) -> None:
        """Remove a member."""

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        """Return the member's reasons by completion id, for a group of its last request. They can be read once."""

    def take_cost(self) -> Cost:
        """Return the cost since the last call."""

    def close(self) -> None:
        """Close the connection. No more requests follow."""


@dataclass(slots=True)
class _Seat:
    models: dict[str, JudgeSpec | None]
    """Models by identity, in the order of the choices. None is the configured model."""
    active: str
    swaps: int
    first: JudgeSpec | None


class LiveJudges:
    """The models by member. A choice is an assignment, and later requests name the new model.

    `members` maps names to configured models, or None if unknown. Methods raise UnknownNameError for an unknown member.
    """

    def __init__(self, members: Mapping[str, JudgeSpec | None]) -> None:
        self._seats: dict[str, _Seat] = {}
        for member, model in members.items():
            self.seat(member, model)

    def seat(self, member: str, model: JudgeSpec | None) -> None:
        """Add a member with its configured model."""
        identity = model.identity if model is not None else CONFIGURED
        swaps = self._seats[member].swaps + 1 if member in self._seats else 0  # a returning member starts afresh
        self._seats[member] = _Seat({identity: None}, identity, swaps, model)

    def leave(self, member: str) -> None:
        """Remove a member. OFF becomes its only choice."""
        seat = self._seat(member)
        seat.models, seat.active = {}, OFF

    @property
    def members(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(self._seats)

    def active(self, member: str) -> str:
        """Return the identity of the member's model, or OFF."""
        return self._seat(member).active

    def choices(self, member: str) -> tuple[str, ...]:
        """Return the member's choices, including OFF."""
        return (*self._seat(member).models, OFF)

    def muted(self, member: str) -> bool:
        """Whether the member is a remote one and off."""
        return member in self._seats and self._seats[member].active == OFF

    def named(self, members: Sequence[str]) -> dict[str, Named]:
        """Return the model that requests to each member must currently name."""
        seats = {member: self._seats[member] for member in members}
        return {member: Named(seat.models[seat.active], seat.swaps) for member, seat in seats.items()}

    def choose(self, member: str, identity: str) -> None:
        """Choose the model for the next batch and later. Raises ConfigError for one that is not a choice."""
        seat = self._seat(member)
        if identity != OFF and identity not in seat.models:
            raise ConfigError(
                f"{identity!r} is not one of the models of {member}, {', '.join(self.choices(member))}; offer it "
                f"first: `oven-controller judge swap {member} …`"
            )
        if identity != seat.active:
            seat.active = identity
            seat.swaps += identity != OFF  # muting and unmuting is also a new start

    def offer(self, member: str, model: JudgeSpec) -> str:
        """Add the model to the choices, and return its identity. A model of the same identity is replaced, because its
        key may differ."""
        seat = self._seat(member)
        if model != seat.first:  # requests do not need to name the first one
            seat.models[model.identity] = model
        return model.identity

    def _seat(self, member: str) -> _Seat:
        if member not in self._seats:
            raise UnknownNameError("committee member", member, self._seats)
        return self._seats[member]
