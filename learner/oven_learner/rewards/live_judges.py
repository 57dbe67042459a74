"""The current model of each remote member, and its alternatives: the choices of `committee.<member>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.judge_spec import OFF, JudgeSpec

CONFIGURED = "configured"
"""Identity of a member's first model if only the member knows it."""


@dataclass(frozen=True, slots=True)
class Named:
    """The model named in a request. `judge` None means the configured one."""

    judge: JudgeSpec | None = None
    swap: int = 0

    @property
    def identity(self) -> str:
        """The identity that the answer must state."""
        return self.judge.identity if self.judge is not None else ""


@dataclass(slots=True)
class _Seat:
    models: dict[str, JudgeSpec | None]
    """Identity → model, in the order of the choices; None: the configured one."""
    active: str
    swaps: int = 0
    first: JudgeSpec | None = None


class LiveJudges:
    """The models by member. Choosing is an assignment: later requests name the new model."""

    def __init__(self, members: Mapping[str, JudgeSpec | None]) -> None:
        """`members` with their configured models; None if unknown."""
        self._seats: dict[str, _Seat] = {}
        for member, model in members.items():
            self.seat(member, model)

    def seat(self, member: str, model: JudgeSpec | None) -> None:
        """Add a member with its configured model."""
        identity = model.identity if model is not None else CONFIGURED
        swaps = self._seats[member].swaps + 1 if member in self._seats else 0  # a returning member starts afresh
        self._seats[member] = _Seat({identity: None}, identity, swaps, model)

    def leave(self, member: str) -> None:
        """Remove a member: OFF becomes its only choice. Raises UnknownNameError."""
        seat = self._seat(member)
        seat.models, seat.active = {}, OFF

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._seats)

    def active(self, member: str) -> str:
        """Return the identity of the member's model, or OFF. Raises UnknownNameError."""
        return self._seat(member).active

    def choices(self, member: str) -> tuple[str, ...]:
        """Return the member's choices, including OFF. Raises UnknownNameError."""
        return (*self._seat(member).models, OFF)

    def muted(self, member: str) -> bool:
        """Whether it is a remote member that is off."""
        return member in self._seats and self._seats[member].active == OFF

    def named(self, members: Sequence[str]) -> dict[str, Named]:
        """Return the model that requests to each member must name now."""
        return {
            member: Named(self._seats[member].models[self._seats[member].active], self._seats[member].swaps)
            for member in members
        }

    def choose(self, member: str, identity: str) -> None:
        """Choose the model from the next batch on. Raises UnknownNameError, and ConfigError for one that is not a
        choice."""
        seat = self._seat(member)
        if identity != OFF and identity not in seat.models:
            raise ConfigError(
                f"{identity!r} is not one of the models of {member}, {', '.join(self.choices(member))}; offer it "
                "first: "
                f"`oven-controller judge swap {member} …`"
            )
        if identity != seat.active:
            seat.active = identity
            seat.swaps += identity != OFF  # muting and unmuting is also a new start

    def offer(self, member: str, model: JudgeSpec) -> str:
        """Add the model to the choices, and return its identity. Replaces one of the same identity, which may have
        another key.

        Raises UnknownNameError.
        """
        seat = self._seat(member)
        if model == seat.first:
            return model.identity  # requests do not need to name it
        seat.models[model.identity] = model
        return model.identity

    def _seat(self, member: str) -> _Seat:
        if member not in self._seats:
            raise UnknownNameError("committee member", member, self._seats)
        return self._seats[member]
