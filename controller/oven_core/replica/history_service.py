"""The history service: past events by request, for those without rights on the log's API."""

from __future__ import annotations

import logging

from nats.aio.msg import Msg
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest, LoggedEvent
from oven_core.protocol.names import Subjects

log = logging.getLogger("oven.history")

REPLY_BYTES = 512 * 1024
"""Half of the server's payload limit: a batch ends early rather than not arriving."""


WAITING = 256
"""Requests that may wait. Who floods the service delays others, who ask again, and does not fill the mesh's memory."""


async def serve_history(bus: Bus, run: str, replica: str = "mesh") -> None:
    """Answer requests until the connection closes; of several replicas one answers each. Replies go to inboxes only:
    a request whose reply subject is a protected one would otherwise have this service write there on a stranger's
    behalf."""

    async def answer(message: Msg) -> None:
        if not message.reply.startswith("_INBOX_."):
            log.warning("ignored a history request with the reply subject %r", message.reply)
            return
        try:
            request = HistoryRequest.model_validate_json(message.data)
            batch = await _batch(bus, run, request)
        except (ValidationError, BusError) as error:
            log.warning("history request not answered: %s", error)
            return
        await bus.publish(message.reply, batch.wire())

    on = Subjects(run)
    await bus.subscribe(on.history, answer, queue="history", waiting=WAITING)
    await bus.subscribe(on.history_of(replica), answer, waiting=WAITING)
    await bus.flush()


async def _batch(bus: Bus, run: str, request: HistoryRequest) -> HistoryBatch:
    head = await bus.head(run)
    events: list[LoggedEvent] = []
    size = 0
    if request.after < head:
        async for event in bus.read(run, after=request.after, until=min(head, request.after + request.limit)):
            entry = event.logged()
            size += len(entry.model_dump_json())
            if events and size > REPLY_BYTES:
                break
            events.append(entry)
    return HistoryBatch(events=tuple(events), head=head)
