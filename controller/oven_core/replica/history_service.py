"""Past events and stored completions by request, for clients without rights on the streams' own API.

Replies go to inboxes only. Otherwise a request with a protected subject as its reply subject would make this service
write there on a stranger's behalf.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import stored_batch
from oven_core.errors import BusError
from oven_core.protocol.completion_messages import CompletionsRequest
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest, LoggedEvent
from oven_core.protocol.messages import Message
from oven_core.protocol.names import Subjects

log = logging.getLogger("oven.history")

REPLY_BYTES = 512 * 1024
"""Half of the server's payload limit. A batch ends early so that it arrives."""
WAITING = 64
"""Requests that may wait. The service drops more, and their senders ask again."""


async def serve_history(bus: Bus, run: str, replica: str = "mesh") -> None:
    """Answer requests for past events until the connection closes. One replica answers each request, and this one
    alone answers those on its own subject."""

    async def read(data: bytes) -> HistoryBatch:
        request = HistoryRequest.model_validate_json(data)
        head, size, events = await bus.head(run), 0, list[LoggedEvent]()
        if request.after < head:
            async for event in bus.read(run, after=request.after, until=min(head, request.after + request.limit)):
                entry = event.logged()
                size += len(entry.model_dump_json())
                if events and size > REPLY_BYTES:
                    break
                events.append(entry)
        return HistoryBatch(events=tuple(events), head=head)

    subjects = Subjects(run)
    await bus.subscribe(subjects.history, _answering(bus, read), queue="history", waiting=WAITING)
    await bus.subscribe(subjects.history_of(replica), _answering(bus, read), waiting=WAITING)
    await bus.flush()


async def serve_completions(bus: Bus, run: str) -> None:
    """Answer requests for stored completions until the connection closes. One replica answers each request."""

    async def read(data: bytes) -> Message:
        request = CompletionsRequest.model_validate_json(data)
        return await stored_batch(bus, run, request.after, request.limit)

    await bus.subscribe(Subjects(run).stored_completions, _answering(bus, read), queue="history", waiting=WAITING)
    await bus.flush()


def _answering(bus: Bus, read: Callable[[bytes], Awaitable[Message]]) -> Callable[[Msg], Awaitable[None]]:
    """A handler that answers a request with what `read` makes of its body. Its log lines quote no body."""

    async def answer(message: Msg) -> None:
        if not message.reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", message.subject, message.reply)
            return
        try:
            batch = await read(message.data)
        except (ValidationError, BusError) as error:
            faults = f"{error.error_count()} faults" if isinstance(error, ValidationError) else str(error)
            log.warning("a request on %s was not answered: %s", message.subject, faults)
            return
        await bus.publish(message.reply, batch.wire())

    return answer
