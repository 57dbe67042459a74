"""What operators say of a committee's judges: models that they offer, members that they add and remove.

A model is probed beside the training, and its outcome is taken over at a step boundary, on every rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from oven_core.errors import OvenError, UnknownNameError, reason
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of, member_of
from oven_core.protocol.operator_messages import JUDGES, OperatorCommand
from oven_learner.actuators import Actuators, Applied, Seats, Status

log = logging.getLogger("oven.learner")


@dataclass(frozen=True, slots=True)
class Offered:
    """A command that is to be carried out now, and why it is refused; empty if it is not."""

    command: OperatorCommand
    refused: str = ""


class JudgeOffers:
    """One client's. Rank 0 alone probes; `take` is called on every rank at the same steps."""

    def __init__(self, actuators: Actuators) -> None:
        self._actuators = actuators
        self._probing: dict[str, tuple[OperatorCommand, Future[str]]] = {}  # member → under way
        self._through: list[Offered] = []
        self._owed: list[tuple[OperatorCommand, Applied]] = []

    def begin(self, command: OperatorCommand) -> None:
        """Rank 0's: probe what the command offers or adds. Never raises, and never waits."""
        refused = self._begun(command)
        if refused or command.action == "remove":
            self._through.append(Offered(command, refused))

    def through(self) -> tuple[Offered, ...]:
        """Commands whose probe is over, each once."""
        for member, (command, probe) in [*self._probing.items()]:
            if probe.done():
                del self._probing[member]
                self._through.append(Offered(command, _outcome(probe)))
        done, self._through = tuple(self._through), []
        return done

    def take(self, offered: Offered, announce: Callable[[str], object]) -> None:
        """Carry it out. What it changes has to be announced before it is answered."""
        command, name = offered.command, offered.command.actuator
        before = self._read(name)
        refused, changed = offered.refused, tuple[str, ...]()
        if not refused:
            try:
                changed = self._carried_out(command)
            except OvenError as error:
                refused = str(error)
        for actuator in changed:
            announce(actuator)
        status: Status = "rejected" if refused else "noop" if command.action == "offer" else "applied"
        said = refused or _SAID[command.action].format(command.judge.identity if command.judge is not None else "")
        log.info("%s %s: %s, %s", command.action, name, status, said)
        self._owed.append((command, Applied(status, before, self._read(name), said)))

    def answers(self) -> list[tuple[OperatorCommand, Applied]]:
        """What is to be said of them, each once: after what they announced."""
        owed, self._owed = self._owed, []
        return owed

    def end(self) -> list[tuple[OperatorCommand, Applied]]:
        """The same at the end of the run: what is still probed has come too late."""
        late = [command for command, _ in self._probing.values()] + [one.command for one in self._through]
        self._probing.clear()
        self._through.clear()
        return self.answers() + [(one, Applied("expired", reason="the run ended first")) for one in late]

    def _begun(self, command: OperatorCommand) -> str:
        """Why it is refused; empty where it is being probed."""
        seats, judge, member = self._actuators.seats, command.judge, member_of(command.actuator)
        if seats is None:
            return "this training has no reward committee"
        if not member:
            return f"{command.actuator!r} is not a committee member; write {actuator_of('NAME')}"
        if command.action == "add" and member in seats:
            return f"{member} is a member already; swap its model, or choose another name"
        if command.action == "remove" and member in self._probing and member not in seats:
            added, probe = self._probing.pop(member)
            probe.cancel()
            self._through.append(Offered(added, "it was removed again before it had answered"))
        if command.action != "add" and member not in seats:
            known = [found for name in self._actuators if (found := member_of(name)) and found in seats]
            return str(UnknownNameError("committee member", member, known))
        if member in self._probing:
            under_way = self._probing[member][0].judge
            other = under_way.identity if under_way is not None else "another model"
            return f"{other} is being probed for {member} now; say it again when that is through"
        if command.action == "remove":
            return ""
        return "no model is named" if judge is None else self._probe(seats, member, judge, command)

    def _probe(self, seats: Seats, member: str, judge: JudgeSpec, command: OperatorCommand) -> str:
        try:
            self._probing[member] = (command, seats.probe(member, judge, joins=command.action == "add"))
        except Exception as error:
            return reason(error)
        return ""

    def _carried_out(self, command: OperatorCommand) -> tuple[str, ...]:
        """The actuators that it changed. Raises OvenError with nothing changed."""
        seats, judge, member = self._actuators.seats, command.judge, member_of(command.actuator)
        assert seats is not None  # or it would have been refused
        if command.action == "remove":
            return seats.remove(self._actuators, member)
        assert judge is not None
        if command.action == "add":
            share = command.value if isinstance(command.value, float | int) else 0.0
            return seats.add(self._actuators, member, judge, float(share))
        return seats.offer(self._actuators, member, judge)

    def _read(self, name: str) -> str | None:
        return str(self._actuators.read(name)) if name in self._actuators else None


_SAID = {
    "offer": "{} answers and can be chosen",
    "add": "{} answers and judges from the next step on",
    "remove": "it is not asked any more, and the others have its weight",
}


def of_judges(order: object) -> bool:
    """Whether it is an operator's word on who judges."""
    return isinstance(order, OperatorCommand) and order.action in JUDGES


def _outcome(probe: Future[str]) -> str:
    try:
        return probe.result()
    except BaseException as error:  # cancelled, too
        return f"the probe failed: {reason(error)}"
