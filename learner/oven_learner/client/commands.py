"""What operators say to the learner, and it says to itself: each obeyed once, and answered by a receipt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Applied
from oven_learner.client.hold_and_stop import LOCAL, OBEYED, RunState
from oven_learner.client.judge_offers import JudgeOffers, Offered, of_judges
from oven_learner.client.run_actions import Run

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
