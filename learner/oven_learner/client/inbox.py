"""Broadcasts decisions and commands from the log, and the learner's own requests, to every rank between two steps."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Literal

from oven_core.protocol.messages import Decision, StepClosed
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.client.commands import LOCAL, OBEYED, ProbedOffer
from oven_learner.link.link_interface import Link
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

LOCKSTEP_S = 30.0
"""Timeout in seconds for a tick to close in lockstep. The learner then continues."""
AFTER_TIMEOUT_S = 0.2
"""Shorter timeout after a first one, until a tick closes again, so that a hanging agent costs LOCKSTEP_S only once."""

Order = Decision | OperatorCommand


@dataclass(frozen=True, slots=True)
class Orders:
    """The messages that rank 0 received before a step, for all ranks."""

    orders: tuple[Order, ...]
    is_time_spent: bool
    announcements: tuple[str, ...] = ()
    """Actuators to announce again."""
    offers: tuple[ProbedOffer, ...] = ()
    """Operators' offers of judges that rank 0 has probed."""


class Inbox:
    """Reads the link on rank 0 and passes the orders to all ranks. In lockstep only rank 0 waits."""

    def __init__(
        self,
        link: Link,
        ranks: Ranks,
        *,
        lockstep: bool = False,
        requested_announcements: Callable[[], tuple[str, ...]] = tuple,
        probed_offers: Callable[[], tuple[ProbedOffer, ...]] = tuple,
    ) -> None:
        """The callables return new items on rank 0, each once."""
        self.timeouts = 0
        self._requested_announcements, self._probed_offers = requested_announcements, probed_offers
        self._link, self._ranks, self._lockstep = link, ranks, lockstep
        self._patience_s = LOCKSTEP_S
        self._closed_tick = -1
        self._numbers = itertools.count()
        self._own_commands: list[OperatorCommand] = []
        self._received: list[Order] = []  # from the link, not yet passed to the other ranks

    def request(self, action: Literal["hold", "stop"], reason: str) -> None:
        """Queue one of the learner's own commands. Safe in a signal handler. A stop counts from any rank, a hold from
        rank 0."""
        if action == "stop" or self._ranks.leader:
            command_id = f"{LOCAL}{next(self._numbers)}"
            self._own_commands.append(OperatorCommand(id=command_id, action=action, reason=reason))

    def collect(
        self, is_time_spent: Callable[[], bool], tick: int | None = None, answered: Container[str] = ()
    ) -> Orders | None:
        """Return the orders of rank 0 on every rank, or None if there is nothing new. A collective.

        Rank 0 also decides when the time budget is spent, so that no rank stops alone. If listening fails on rank 0,
        the other ranks still get their answer for this step. In lockstep it waits for `tick` to close, unless there is
        a command that is not `answered`.
        """
        wants_stop = bool(self._own_commands) and not self._ranks.leader
        return self._ranks.broadcast_if_any(partial(self._news, is_time_spent, tick, answered), wants_stop=wants_stop)

    def take_rest(self) -> list[Order]:
        """Return the orders that came too late to be obeyed."""
        self._listen(None, ())
        return self._received

    def _news(self, is_time_spent: Callable[[], bool], tick: int | None, answered: Container[str]) -> Orders | None:
        if (requester := self._ranks.stop_requester) is not None:
            self._ranks.stop_requester = None
            self.request("stop", f"rank {requester} was asked to end")
        self._listen(tick, answered)
        time_spent = is_time_spent()
        own, self._own_commands = self._own_commands, []
        received, self._received = self._received, []
        announcements, offers = self._requested_announcements(), self._probed_offers()
        if not (own or received or time_spent or announcements or offers):
            return None
        return Orders((*own, *received), time_spent, announcements, offers)

    def _listen(self, tick: int | None, answered: Container[str]) -> None:
        """Read the link. Orders that arrived before a failure are kept."""
        try:
            self._drain()
            if self._lockstep and tick is not None:
                self._wait_for_close(tick, answered)
        except Exception:
            log.exception("reading from the link failed; training continues")

    def _wait_for_close(self, tick: int, answered: Container[str]) -> None:
        deadline = time.monotonic() + self._patience_s
        while self._closed_tick < tick and time.monotonic() < deadline and not self._has_unanswered(answered):
            time.sleep(0.0005)
            self._drain()
        if self._closed_tick >= tick:
            self._patience_s = LOCKSTEP_S
        elif not self._has_unanswered(answered):
            self.timeouts += 1
            log.warning("tick %d did not close in %g s; the run is not repeatable", tick, self._patience_s)
            self._patience_s = AFTER_TIMEOUT_S

    def _has_unanswered(self, answered: Container[str]) -> bool:
        """Whether a command for the learner waits. It needs no mesh, so in lockstep it does not wait for the tick to
        close."""
        return any(
            isinstance(order, OperatorCommand) and order.action in OBEYED and order.id not in answered
            for order in (*self._own_commands, *self._received)
        )

    def _drain(self) -> None:
        while (body := self._link.receive()) is not None:
            if isinstance(body, StepClosed):
                self._closed_tick = max(self._closed_tick, body.tick)
            elif isinstance(body, Decision | OperatorCommand):
                self._received.append(body)
