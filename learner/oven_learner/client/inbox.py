"""Receives decisions and commands from the log, and broadcasts them to every rank between two steps.

It broadcasts the learner's own commands and requests in the same way.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from oven_core.protocol.messages import Decision, LogMessage, StepClosed
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.client.commands import DIRECT_COMMANDS, LOCAL_PREFIX, ProbedCommand
from oven_learner.link.link_interface import Link
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

LOCKSTEP_TIMEOUT_S = 30.0
"""Maximum seconds to wait for a tick to close in lockstep. After that, the learner continues."""
REPEATED_TIMEOUT_S = 0.2
"""Maximum seconds to wait instead, from the first timeout until a tick closes. It limits a stuck agent's delay."""
POLL_INTERVAL_S = 0.0005
"""Seconds between two reads of the link while waiting for a tick to close."""

Order = Decision | OperatorCommand
"""A message that the learner has to carry out."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders and requests that rank 0 collected before a step, for all ranks."""

    orders: tuple[Order, ...] = ()
    is_time_spent: bool = False
    """Whether the run's time budget is used up."""
    announcements: tuple[str, ...] = ()
    """Actuators to announce again."""
    probed_commands: tuple[ProbedCommand, ...] = ()
    """Judge commands whose probe has finished on rank 0."""


class Inbox:
    """Reads the link on rank 0 and passes the orders to all ranks."""

    def __init__(
        self,
        link: Link,
        ranks: Ranks,
        take_own_requests: Callable[[], Orders | None],
        *,
        lockstep: bool = False,
    ) -> None:
        """`take_own_requests` returns the learner's own new requests on rank 0, without orders, or None."""
        self.timeouts = 0
        """Number of lockstep timeouts."""
        self._link, self._ranks, self._take_own_requests, self._lockstep = link, ranks, take_own_requests, lockstep
        self._timeout_s = LOCKSTEP_TIMEOUT_S
        self._closed_tick = -1
        self._command_numbers = itertools.count()
        self._local_commands: list[OperatorCommand] = []
        self._received: list[Order] = []  # not yet passed to the other ranks

    def request(self, action: Literal["hold", "stop"], reason: str) -> None:
        """Queue one of the learner's own commands. Can be called in a signal handler. Any rank can request a
        stop, but only rank 0 a hold."""
        if action == "stop" or self._ranks.leader:
            command_id = f"{LOCAL_PREFIX}{next(self._command_numbers)}"
            self._local_commands.append(OperatorCommand(id=command_id, action=action, reason=reason))

    def collect(self, tick: int | None = None, answered_ids: Container[str] = ()) -> Orders | None:
        """Return the orders of rank 0 on every rank, or None if there is nothing new.

        All ranks must call this at the same step. Rank 0 also decides when the time budget is used up, so that all
        ranks stop together. If reading the link fails on rank 0, the other ranks still receive a result for this step.
        In lockstep, rank 0 waits for `tick` to close, unless a direct command is waiting that is not in `answered_ids`.
        """
        if self._ranks.count == 1:
            return self._read_orders(tick, answered_ids)
        wants_stop = bool(self._local_commands) and not self._ranks.leader
        read_orders = partial(self._read_orders, tick, answered_ids)
        return self._ranks.broadcast_if_any(read_orders, wants_stop=wants_stop)

    def take_remaining(self) -> list[Order]:
        """Return the orders that arrived too late to be executed."""
        self._listen(None, ())
        return self._received

    def _read_orders(self, tick: int | None, answered_ids: Container[str]) -> Orders | None:
        if (requester := self._ranks.stop_requester) is not None:
            self._ranks.stop_requester = None
            self.request("stop", f"rank {requester} requested a stop")
        self._listen(tick, answered_ids)
        try:
            own_requests = self._take_own_requests()
        except Exception:
            log.exception("receiving decisions failed; training continues")
            return None
        if own_requests is None and not self._received and not self._local_commands:
            return None
        # A signal handler may append to the list at any time, so the list is replaced, not copied and cleared.
        local_commands, self._local_commands = self._local_commands, []
        received, self._received = self._received, []
        return replace(own_requests or Orders(), orders=(*local_commands, *received))

    def _listen(self, tick: int | None, answered_ids: Container[str]) -> None:
        """Read the link, and in lockstep wait for `tick` to close. After a failure, keep the arrived orders."""
        try:
            while (body := self._link.receive()) is not None:
                self._accept(body)
            if self._lockstep and tick is not None:
                self._wait_for_close(tick, answered_ids)
        except Exception:
            log.exception("cannot read from the link; training continues")

    def _wait_for_close(self, tick: int, answered_ids: Container[str]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while self._closed_tick < tick and time.monotonic() < deadline and not self._must_answer(answered_ids):
            time.sleep(POLL_INTERVAL_S)
            while (body := self._link.receive()) is not None:
                self._accept(body)
        if self._closed_tick >= tick:
            self._timeout_s = LOCKSTEP_TIMEOUT_S
        elif not self._must_answer(answered_ids):
            self.timeouts += 1
            log.warning("tick %d did not close within %g s; the run is not reproducible", tick, self._timeout_s)
            self._timeout_s = REPEATED_TIMEOUT_S

    def _must_answer(self, answered_ids: Container[str]) -> bool:
        """Whether a direct command is waiting. It does not need the mesh, so the tick does not have to close first."""
        return any(
            isinstance(order, OperatorCommand) and order.action in DIRECT_COMMANDS and order.id not in answered_ids
            for order in (*self._local_commands, *self._received)
        )

    def _accept(self, body: LogMessage) -> None:
        if isinstance(body, StepClosed):
            self._closed_tick = max(self._closed_tick, body.tick)
        elif isinstance(body, Decision | OperatorCommand):
            self._received.append(body)
