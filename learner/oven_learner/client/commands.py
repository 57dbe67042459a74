"""Commands of operators, and of the learner to itself: each is obeyed once and answered by a receipt.

Hold, resume and stop need no mesh: the learner obeys them directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Applied
from oven_learner.client.judge_offers import JudgeOffers, ProbedOffer, is_about_judges
from oven_learner.client.run_actions import Run

log = logging.getLogger("oven.learner")

OBEYED = {"hold": "run.hold", "resume": "run.hold", "stop": "run.stop"}
"""Commands that the learner obeys → the actuator in their receipts. The mesh handles the others."""
LOCAL = "local-"
"""Prefix of the ids of the learner's own commands."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Why the run is held and why training should stop after this step; each empty if it is not so."""

    held: str = ""
    stopping: str = ""

    def after(self, command: OperatorCommand) -> tuple[RunState, Applied]:
        """Return the state after the command, and the outcome for its receipt."""
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
    """Whether `orders` contain a command that the learner has to obey and has not answered.

    Such a command needs no mesh, so in lockstep it does not wait for the tick to close.
    """
    commands = (order for order in orders if isinstance(order, OperatorCommand) and order.action in OBEYED)
    return any(command.id not in answered for command in commands)


class Commands:
    """The commands of one client. Every rank calls each method at the same steps."""

    def __init__(self, run: Run, offers: JudgeOffers, publish: Callable[..., None], *, leader: bool) -> None:
        """`publish(applied, actuator, *, command)` sends a receipt. Only the `leader`, rank 0, probes judges."""
        self.seen_ids: set[str] = set()
        """Ids of commands that were obeyed or answered."""
        self._run, self._offers, self._publish, self._leader = run, offers, publish, leader

    def ignore(self, ids: Iterable[str]) -> None:
        """Ignore commands of earlier incarnations. The learner's own are numbered anew, so they are not ignored."""
        self.seen_ids.update(command_id for command_id in ids if not command_id.startswith(LOCAL))

    def obey(self, command: OperatorCommand) -> None:
        """Obey the command, unless it was seen before, and answer it with a receipt."""
        if command.id in self.seen_ids:
            return
        if is_about_judges(command):
            self.seen_ids.add(command.id)
            if self._leader:
                self._offers.begin(command)
        if command.action not in OBEYED:
            return
        run = self._run
        state, applied = RunState(run.held, run.stopping).after(command)
        run.held, run.stopping = state.held, state.stopping
        local = command.id.startswith(LOCAL)
        level, origin = (logging.WARNING, "learner") if local else (logging.INFO, "operator")
        log.log(level, "%s: %s, %s (%s)", origin, command.action, applied.status, applied.reason)
        self._answer(command, applied)

    def take_offers(self, offers: Iterable[ProbedOffer], announce: Callable[[str], object]) -> None:
        """Carry out commands about judges whose probe is over."""
        for offer in offers:
            self._offers.carry_out(offer, announce)

    def answer_offers(self) -> None:
        """Answer the commands about judges. Call it after the actuators that they changed were announced."""
        for command, applied in self._offers.take_answers():
            self._publish(applied, command.actuator, command=command.id)

    def end(self, late_orders: Iterable[object]) -> None:
        """Answer what is still open when the run ends. `late_orders` came too late to be obeyed."""
        expired = Applied("expired", reason="the run ended first")
        for command, applied in self._offers.end():
            self._publish(applied, command.actuator, command=command.id)
        for order in late_orders:
            if not isinstance(order, OperatorCommand):
                continue
            if not is_about_judges(order):
                self._answer(order, expired)
            elif order.id not in self.seen_ids:
                self.seen_ids.add(order.id)
                self._publish(expired, order.actuator, command=order.id)

    def _answer(self, command: OperatorCommand, applied: Applied) -> None:
        if command.id in self.seen_ids or command.action not in OBEYED:
            return
        self.seen_ids.add(command.id)
        if command.action == "hold" or not command.id.startswith(LOCAL):  # RunEnded answers the learner's own stop
            self._publish(applied, OBEYED[command.action], command=command.id)
