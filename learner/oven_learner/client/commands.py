"""What operators say to the learner, and it says to itself: each obeyed once, and answered by a receipt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Applied
from oven_learner.client.judge_offers import JudgeOffers, Offered, of_judges
from oven_learner.client.run_actions import Run

OBEYED = {"hold": "run.hold", "resume": "run.hold", "stop": "run.stop"}
"""The commands that the learner obeys, with the actuator that their receipts name; the mesh deals with the others."""
LOCAL = "local-"
"""How the ids of the learner's own commands begin."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Why the run is held, and why training should stop after this step; empty where it is not, and should not."""

    held: str = ""
    stopping: str = ""

    def after(self, command: OperatorCommand) -> tuple[RunState, Applied]:
        """The state from now on, and what the receipt says of the change."""
        why = command.reason or "an operator asked for it"
        match command.action:
            case "hold" if self.held:
                return self, Applied("noop", reason=f"it is held already: {self.held}")
            case "hold":
                return replace(self, held=why), Applied("applied", reason=why)
            case "resume" if not self.held:
                return self, Applied("noop", reason="it is not held")
            case "resume":
                return replace(self, held=""), Applied("applied", reason=f"it goes on: {why}")
            case _ if self.stopping:
                return self, Applied("noop", reason=f"it stops already: {self.stopping}")
        return replace(self, stopping=why), Applied("applied", reason=f"it stops after this step: {why}")


def has_unanswered_command(orders: Iterable[object], answered: Container[str]) -> bool:
    """Whether a command is among them that the learner has to obey, and has not answered yet. It needs no mesh, so in
    lockstep it does not wait for one to close the tick."""
    commands = (order for order in orders if isinstance(order, OperatorCommand) and order.action in OBEYED)
    return any(command.id not in answered for command in commands)


log = logging.getLogger("oven.learner")


class Commands:
    """One client's. On every rank alike: each method is called on all of them at the same steps."""

    def __init__(self, run: Run, offers: JudgeOffers, publish: Callable[..., None], *, leader: bool) -> None:
        """`publish(applied, actuator, *, command)` sends a receipt. `leader`: rank 0, which alone probes judges."""
        self.known: set[str] = set()
        """Ids of those that were obeyed or answered."""
        self._run, self._offers, self._publish, self._leader = run, offers, publish, leader

    def known_from(self, ids: Iterable[str]) -> None:
        """Those of earlier incarnations, but for the learner's own, which count anew."""
        self.known.update(name for name in ids if not name.startswith(LOCAL))

    def obey(self, command: OperatorCommand) -> None:
        """Once, and say so in a receipt that names the command."""
        if command.id in self.known:
            return
        if of_judges(command):
            self.known.add(command.id)
            if self._leader:
                self._offers.begin(command)
        if command.action not in OBEYED:
            return
        run = self._run
        state, applied = RunState(run.held, run.stopping).after(command)
        run.held, run.stopping = state.held, state.stopping
        level, who = (logging.WARNING, "learner") if command.id.startswith(LOCAL) else (logging.INFO, "operator")
        log.log(level, "%s: %s, %s (%s)", who, command.action, applied.status, applied.reason)
        self._answer(command, applied)

    def take(self, offered: Iterable[Offered], announce: Callable[[str], object]) -> None:
        """What operators said of judges, whose probe is through."""
        for one in offered:
            self._offers.take(one, announce)

    def answer_offers(self) -> None:
        """After what they made a choice was announced."""
        for command, applied in self._offers.answers():
            self._publish(applied, command.actuator, command=command.id)

    def end(self, rest: Iterable[object]) -> None:
        """The run has ended; `rest` came too late."""
        late = Applied("expired", reason="the run ended first")
        for command, applied in self._offers.end():
            self._publish(applied, command.actuator, command=command.id)
        for order in rest:
            if of_judges(order) and isinstance(order, OperatorCommand) and order.id not in self.known:
                self.known.add(order.id)
                self._publish(late, order.actuator, command=order.id)
            elif isinstance(order, OperatorCommand):
                self._answer(order, late)

    def _answer(self, command: OperatorCommand, applied: Applied) -> None:
        if command.id in self.known or command.action not in OBEYED:
            return
        self.known.add(command.id)
        if command.action == "hold" or not command.id.startswith(LOCAL):  # what asks for a stop here ends in RunEnded
            self._publish(applied, OBEYED[command.action], command=command.id)
