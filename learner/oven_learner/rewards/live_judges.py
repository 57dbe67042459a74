"""Which model judges as each remote member, and which others may: the choices of `committee.<member>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.judge_spec import OFF, JudgeSpec

CONFIGURED = "configured"
"""The identity of a member's first judge where only the member itself knows which model that is."""


@dataclass(frozen=True, slots=True)
class Named:
    """The model that a request has to name. `judge` None: the one that the member was configured with."""

    judge: JudgeSpec | None = None
    swap: int = 0

    @property
    def identity(self) -> str:
        """What the answer has to say that it is by."""
        return self.judge.identity if self.judge is not None else ""


@dataclass(slots=True)
class _Seat:
    models: dict[str, JudgeSpec | None]
    """Identity → model, in the order of the choices; None: the configured one."""
    active: str
    swaps: int = 0
    first: JudgeSpec | None = None


class LiveJudges:
    """By member. Choosing is an assignment: requests that are made from then on name the model."""

    def __init__(self, members: Mapping[str, JudgeSpec | None]) -> None:
        """`members` with the models that they were configured with; None: not known here."""
        self._seats: dict[str, _Seat] = {}
        for member, model in members.items():
            self.seat(member, model)

    def seat(self, member: str, model: JudgeSpec | None) -> None:
        """A member that comes, with the model that it was configured with."""
        identity = model.identity if model is not None else CONFIGURED
        swaps = self._seats[member].swaps + 1 if member in self._seats else 0  # one that comes back starts anew
        self._seats[member] = _Seat({identity: None}, identity, swaps, model)

    def leave(self, member: str) -> None:
        """A member that goes: nothing is a choice of it but OFF. Raises UnknownNameError."""
        seat = self._seat(member)
        seat.models, seat.active = {}, OFF

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._seats)

    def active(self, member: str) -> str:
        """Identity of the model that judges as this member, or OFF. Raises UnknownNameError."""
        return self._seat(member).active

    def choices(self, member: str) -> tuple[str, ...]:
        """What may judge as it, OFF among them. Raises UnknownNameError."""
        return (*self._seat(member).models, OFF)

    def muted(self, member: str) -> bool:
        """Whether it is a remote member that is not asked."""
        return member in self._seats and self._seats[member].active == OFF

    def named(self, members: Sequence[str]) -> dict[str, Named]:
        """What requests to each of them have to name now."""
        return {
            member: Named(self._seats[member].models[self._seats[member].active], self._seats[member].swaps)
            for member in members
        }

    def choose(self, member: str, identity: str) -> None:
        """Have this model judge from the next batch on. Raises UnknownNameError, and ConfigError for one that is not
        among the choices."""
        seat = self._seat(member)
        if identity != OFF and identity not in seat.models:
            raise ConfigError(
                f"{identity!r} is none of the models of {member}, {', '.join(self.choices(member))}; offer it first: "
                f"`oven-controller judge swap {member} …`"
            )
        if identity != seat.active:
            seat.active = identity
            seat.swaps += identity != OFF  # muted and back is a new start, too

    def offer(self, member: str, model: JudgeSpec) -> str:
        """Make the model a choice, and return its identity. One of the same identity is replaced: it may have another
        key. Raises UnknownNameError, and ConfigError for a model that would be called as muting is."""
        seat = self._seat(member)
        if model == seat.first:
            return model.identity  # requests need not name it
        seat.models[model.identity] = model
        return model.identity

    def _seat(self, member: str) -> _Seat:
        if member not in self._seats:
            raise UnknownNameError("committee member", member, self._seats)
        return self._seats[member]
