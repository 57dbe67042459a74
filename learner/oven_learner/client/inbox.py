"""Orders that reach the learner between two steps: from the log and requests of its own, on every rank alike."""

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
from oven_learner.client.commands import LOCAL, has_unanswered_command
from oven_learner.client.judge_offers import Offered
from oven_learner.link.link_interface import Link
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

LOCKSTEP_S = 30.0
"""How long a learner in lockstep waits for a tick to close before it continues without."""
AFTER_TIMEOUT_S = 0.2
"""And from then on, until a tick closes again: one agent that hangs must not cost that wait at every tick."""

Order = Decision | OperatorCommand


@dataclass(frozen=True, slots=True)
class Orders:
    """What rank 0 heard before a step, for all ranks."""

    orders: tuple[Order, ...]
    spent: bool
    """The time budget is."""
    announced: tuple[str, ...] = ()
    """Actuators that rank 0 announces anew."""
    offered: tuple[Offered, ...] = ()
    """Operators' offers that rank 0 has probed."""


class Inbox:
    """Rank 0 reads the link, and in lockstep it alone waits; the others hear from it."""

    def __init__(
        self,
        link: Link,
        ranks: Ranks,
        *,
        lockstep: bool = False,
        asked: Callable[[], tuple[str, ...]] = tuple,
        offered: Callable[[], tuple[Offered, ...]] = tuple,
    ) -> None:
        """`asked`: what rank 0 wants announced, each once; `offered`: the same of offers that it has probed."""
        self.timeouts = 0
        self._announced, self._offered = asked, offered
        self._link, self._ranks, self._lockstep = link, ranks, lockstep
        self._patience = LOCKSTEP_S
        self._closed_tick = -1
        self._numbers = itertools.count()
        self._asked: list[OperatorCommand] = []
        self._fresh: list[Order] = []  # taken from the link, and not said to the other ranks yet

    def ask(self, action: Literal["hold", "stop"], reason: str) -> None:
        """As an operator would. Safe from a signal handler. A stop is heard from any rank, a hold from rank 0."""
        if action == "stop" or self._ranks.leader:
            self._asked.append(OperatorCommand(id=f"{LOCAL}{next(self._numbers)}", action=action, reason=reason))

    def collect(
        self, spent: Callable[[], bool], tick: int | None = None, answered: Container[str] = ()
    ) -> Orders | None:
        """A collective: rank 0's word goes, the end of the time budget included, or one would stop alone. Whatever
        happens to rank 0 while it listens, the others hear of the step from it. None: nothing new.

        In lockstep it waits for `tick` to close, unless there is a command that is not `answered`.
        """
        asks = bool(self._asked) and not self._ranks.leader
        return self._ranks.broadcast_if_any(partial(self._news, spent, tick, answered), asks=asks)

    def rest(self) -> list[Order]:
        """What came too late to be heard."""
        self._listen(None, ())
        return self._fresh

    def _news(self, spent: Callable[[], bool], tick: int | None, answered: Container[str]) -> Orders | None:
        if (asker := self._ranks.asker) is not None:
            self._ranks.asker = None
            self.ask("stop", f"rank {asker} was asked to end")
        self._listen(tick, answered)
        over = spent()
        asked, self._asked = self._asked, []
        fresh, self._fresh = self._fresh, []
        announced, offered = self._announced(), self._offered()
        if not (asked or fresh or over or announced or offered):
            return None
        return Orders((*asked, *fresh), over, announced, offered)

    def _listen(self, tick: int | None, answered: Container[str]) -> None:
        """What was taken from the link before it failed is heard all the same."""
        try:
            self._drain()
            if self._lockstep and tick is not None:
                self._await(tick, answered)
        except Exception:
            log.exception("reading from the link failed; training continues")

    def _await(self, tick: int, answered: Container[str]) -> None:
        limit = time.monotonic() + self._patience
        while self._closed_tick < tick and time.monotonic() < limit and not self._has_unanswered_command(answered):
            time.sleep(0.0005)
            self._drain()
        if self._closed_tick >= tick:
            self._patience = LOCKSTEP_S
        elif not self._has_unanswered_command(answered):
            self.timeouts += 1
            log.warning("tick %d did not close in %g s; the run is not repeatable", tick, self._patience)
            self._patience = AFTER_TIMEOUT_S

    def _has_unanswered_command(self, answered: Container[str]) -> bool:
        return has_unanswered_command([*self._asked, *self._fresh], answered)

    def _drain(self) -> None:
        while (body := self._link.receive()) is not None:
            if isinstance(body, StepClosed):
                self._closed_tick = max(self._closed_tick, body.tick)
            elif isinstance(body, Decision | OperatorCommand):
                self._fresh.append(body)
