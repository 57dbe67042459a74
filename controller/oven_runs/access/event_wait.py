"""Wait until something happens in a run, without using the CPU meanwhile.

The wait subscribes only to the messages that may end it, and reads the log when one arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oven_core.errors import BusError, ConfigError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest
from oven_core.protocol.messages import Decision, Observation, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.subjects import BY_KIND
from oven_core.security.signing import Keyring
from oven_core.terminal_text import warn
from oven_runs.access.run_access import MIN_POLL_S, RunAccess

if TYPE_CHECKING:  # as in run_access
    from oven_core.bus.connection import Bus
    from oven_core.bus.nats_client import InlineMessage

CHECK_S: Final = 5.0
"""Seconds between checks whether the stack was killed. Its regular end is a message."""
LOOKUP_TIMEOUT_S: Final = 0.5
"""Seconds in which the log has to answer about a message that has just arrived. Without an answer, the event is
returned as it arrived, without a sequence number."""
LOOKBACK: Final = 64
"""Number of newest events in which the log is searched for a message that has just arrived."""
_SUBJECT_OF: Final = {"finding": "alert", "decision": "decision", "step": "observation", "end": "run"}
Kind: TypeAlias = Literal["finding", "decision", "step", "end"]


@dataclass(frozen=True, slots=True)
class Condition:
    """What to wait for."""

    kind: Kind
    step: int = 0
    """With the kind `step`: the optimizer step to reach."""

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `finding`, `decision`, `end` or `step:N`. Raises ConfigError."""
        kind, _, number = text.partition(":")
        if kind == "step" and number.isdecimal() and len(number) < 16:
            return cls("step", int(number))
        if text in ("finding", "decision", "end"):
            return cls(text)  # type: ignore[arg-type]
        raise ConfigError(
            f"cannot wait for {text!r}; write finding, decision, end, or step:N with a number, e.g. step:500"
        )

    def matches(self, event: Event) -> bool:
        """Whether the event is what to wait for."""
        match event.body:
            case Alert(state="raised"):
                return self.kind == "finding"
            case Decision():
                return self.kind == "decision"
            case Observation() as body:
                return self.kind == "step" and body.step >= self.step
            case RunEnded():
                return self.kind == "end"
        return False

    @property
    def is_state(self) -> bool:
        """Whether it may be true already, as opposed to an event that has to come."""
        return self.kind in ("step", "end")


async def wait_for(access: RunAccess, condition: Condition, after: int | None = None) -> Event | None:
    """Return the first matching event, or None if the training ended, or the stack is down, without one.

    `after` is a sequence number: an event after it counts even if it is already in the log. Without it, findings and
    decisions count from now on, and a step or an end counts if it has been reached. Raises BusError and ConfigError."""
    if not access.is_up() and after is None and not condition.is_state:
        return None
    wait = _Wait(access, condition, after)
    async with contextlib.aclosing(access.poll(wait.listen, wait.fetch, wait.is_over, warn, CHECK_S)) as results:
        async for event in results:
            return event if condition.matches(event) else None
    newest: Event | None = None
    async with contextlib.aclosing(access.events(brief=True)) as log:
        async for event in log:
            if event.seq > wait.seq and condition.matches(event):
                if condition.kind != "end":
                    return event
                newest = event
    return newest


class _Wait:
    def __init__(self, access: RunAccess, condition: Condition, after: int | None) -> None:
        self.seq = after or 0
        """The newest event that has been checked."""
        self._access, self._condition, self._after = access, condition, after
        self._wake = asyncio.Event()
        self._arrived: Event | None = None  # a live message that ends the wait
        self._keyring = Keyring(None)
        self._is_connected_anew = False
        self._has_started = False
        self._has_ended = False

    def is_over(self) -> bool:
        return self._access.is_over(self._has_ended)

    async def listen(self, bus: Bus, run: str, wake: asyncio.Event) -> None:
        self._wake, self._is_connected_anew = wake, True
        self._keyring = await self._access.live_keyring(bus)
        for kind in {_SUBJECT_OF[self._condition.kind], "run"}:
            await bus.subscribe_inline(BY_KIND[kind].pattern(run), self._on_message)
        await bus.flush()

    def _on_message(self, message: InlineMessage) -> None:
        event = Event.from_message(0, message.subject, message.data, datetime.now(UTC), message.headers)
        event = self._keyring.verify(event)
        self._has_ended |= isinstance(event.body, RunEnded)
        if self._arrived is None and self._ends_wait(event):
            self._arrived = event
            self._wake.set()

    def _ends_wait(self, event: Event) -> bool:
        return self._condition.matches(event) or isinstance(event.body, RunEnded)

    async def fetch(self, bus: Bus) -> AsyncGenerator[Event]:
        """Yield the event that ends the wait, if there is one by now."""
        if self._is_connected_anew:
            if (match := await self._search(bus)) is not None:
                yield match
            self._has_started, self._is_connected_anew = True, False
        if self._arrived is not None:
            yield await self._look_up(bus, self._arrived)

    async def _look_up(self, bus: Bus, arrived: Event) -> Event:
        """Return the log's entry for a live message, which has its sequence number, or else the message itself."""
        with contextlib.suppress(TimeoutError, BusError):
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                while True:
                    async for event in self._events(bus, max(0, await self._head(bus) - LOOKBACK)):
                        if event.subject == arrived.subject and event.data == arrived.data:
                            return event
                    await asyncio.sleep(MIN_POLL_S)
        return arrived

    async def _search(self, bus: Bus) -> Event | None:
        """Return the event that ends the wait, if the log has it: the newest events at the start, or those that were
        missed while the connection was lost."""
        start, head = self.seq, await self._head(bus)
        if not self._has_started and self._after is None:
            start, self.seq = max(0, head - LOOKBACK), head
        match: Event | None = None
        last_seq = 0
        async for event in self._events(bus, start):
            event = self._keyring.verify(event)
            counts = event.seq > self.seq or self._condition.is_state
            if match is None and counts and self._ends_wait(event):
                match = event
            elif match is not None and isinstance(match.body, RunEnded) and isinstance(event.body, RunStarted):
                match = None  # the training was resumed
            last_seq = event.seq
        self.seq = max(self.seq, last_seq)
        return match

    async def _head(self, bus: Bus) -> int:
        request = HistoryRequest(after=2**53, limit=1)
        reply = await bus.request(Subjects(self._access.run).history, request.wire(), 5.0)
        return HistoryBatch.model_validate_json(reply).head

    async def _events(self, bus: Bus, start: int) -> AsyncGenerator[Event]:
        from oven_runs.access.log_sources import read_batches

        async with contextlib.aclosing(read_batches(bus, self._access.run, start)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event
