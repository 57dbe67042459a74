"""Operators' commands about a committee's judges: offer a model, add a member, remove a member.

A model is probed beside the training. The outcome takes effect at a step boundary, on every rank.
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

DONE = {
    "offer": "{} answers and can be chosen",
    "add": "{} answers and judges from the next step on",
    "remove": "it is not asked any more, and the others have its weight",
}
"""Action → the receipt's reason when it succeeded."""


@dataclass(frozen=True, slots=True)
class ProbedOffer:
    """A command whose probe is over, and why it is refused; empty if it is not."""

    command: OperatorCommand
    refusal: str = ""


class JudgeOffers:
    """The judge commands of one client. Only rank 0 probes; every rank calls `carry_out` at the same steps."""

    def __init__(self, actuators: Actuators) -> None:
        self._actuators = actuators
        self._probing: dict[str, tuple[OperatorCommand, Future[str]]] = {}  # member → running probe
        self._probed: list[ProbedOffer] = []
        self._answers: list[tuple[OperatorCommand, Applied]] = []

    def begin(self, command: OperatorCommand) -> None:
        """Start to probe the model that the command offers or adds. Never raises and never waits. Rank 0 only."""
        refusal = self._start_probe(command)
        if refusal or command.action == "remove":
            self._probed.append(ProbedOffer(command, refusal))

    def take_probed(self) -> tuple[ProbedOffer, ...]:
        """Return the commands whose probe is over, each once."""
        for member, (command, probe) in [*self._probing.items()]:
            if probe.done():
                del self._probing[member]
                self._probed.append(ProbedOffer(command, _refusal(probe)))
        probed, self._probed = tuple(self._probed), []
        return probed

    def carry_out(self, offer: ProbedOffer, announce: Callable[[str], object]) -> None:
        """Carry out the command, and announce the actuators that it changed. The answer has to wait for that."""
        command, name = offer.command, offer.command.actuator
        before = self._read(name)
        refusal, changed = offer.refusal, tuple[str, ...]()
        if not refusal:
            try:
                changed = self._change_seats(command)
            except OvenError as error:
                refusal = str(error)
        for actuator in changed:
            announce(actuator)
        status: Status = "rejected" if refusal else "noop" if command.action == "offer" else "applied"
        why = refusal or DONE[command.action].format(command.judge.identity if command.judge is not None else "")
        log.info("%s %s: %s, %s", command.action, name, status, why)
        self._answers.append((command, Applied(status, before, self._read(name), why)))

    def take_answers(self) -> list[tuple[OperatorCommand, Applied]]:
        """Return the answers to commands that were carried out, each once."""
        answers, self._answers = self._answers, []
        return answers

    def end(self) -> list[tuple[OperatorCommand, Applied]]:
        """Return the last answers when the run ends. A command that is still being probed came too late."""
        late = [command for command, _ in self._probing.values()] + [offer.command for offer in self._probed]
        self._probing.clear()
        self._probed.clear()
        return self.take_answers() + [(command, Applied("expired", reason="the run ended first")) for command in late]

    def _start_probe(self, command: OperatorCommand) -> str:
        """Return why the command is refused; empty if it is not, or not yet."""
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
            self._probed.append(ProbedOffer(added, "it was removed again before it had answered"))
        if command.action != "add" and member not in seats:
            members = [seat for name in self._actuators if (seat := member_of(name)) and seat in seats]
            return str(UnknownNameError("committee member", member, members))
        if member in self._probing:
            running = self._probing[member][0].judge
            model = running.identity if running is not None else "another model"
            return f"{model} is being probed for {member} now; say it again when that is through"
        if command.action == "remove":
            return ""
        return "no model is named" if judge is None else self._probe(seats, member, judge, command)

    def _probe(self, seats: Seats, member: str, judge: JudgeSpec, command: OperatorCommand) -> str:
        try:
            self._probing[member] = (command, seats.probe(member, judge, joins=command.action == "add"))
        except Exception as error:
            return reason(error)
        return ""

    def _change_seats(self, command: OperatorCommand) -> tuple[str, ...]:
        """Return the actuators that the command changed. Raises OvenError with nothing changed."""
        seats, judge, member = self._actuators.seats, command.judge, member_of(command.actuator)
        assert seats is not None  # or the command would have been refused
        if command.action == "remove":
            return seats.remove(self._actuators, member)
        assert judge is not None
        if command.action == "add":
            share = command.value if isinstance(command.value, float | int) else 0.0
            return seats.add(self._actuators, member, judge, float(share))
        return seats.offer(self._actuators, member, judge)

    def _read(self, name: str) -> str | None:
        return str(self._actuators.read(name)) if name in self._actuators else None


def is_about_judges(order: object) -> bool:
    """Whether the order is an operator's command about judges."""
    return isinstance(order, OperatorCommand) and order.action in JUDGES


def _refusal(probe: Future[str]) -> str:
    try:
        return probe.result()
    except BaseException as error:  # also if it was cancelled
        return f"the probe failed: {reason(error)}"
