"""Sampled completions by request, for those without rights on their stream's API."""

from __future__ import annotations

import logging

from nats.aio.msg import Msg
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import stored_batch
from oven_core.errors import BusError
from oven_core.protocol.completion_messages import CompletionsRequest
from oven_core.protocol.names import Subjects

log = logging.getLogger("oven.history")

WAITING = 64
"""Requests that may wait: more are dropped, and their askers ask again."""


async def serve_completions(bus: Bus, run: str) -> None:
    """Answer requests until the connection closes; of several replicas one answers each. To inboxes only, as
    `serve_history` does."""

    async def answer(message: Msg) -> None:
        if not message.reply.startswith("_INBOX_."):
            log.warning("ignored a request for completions with the reply subject %r", message.reply)
            return
        try:
            request = CompletionsRequest.model_validate_json(message.data)
            batch = await stored_batch(bus, run, request.after, request.limit)
        except (ValidationError, BusError) as error:
            what = f"{error.error_count()} faults" if isinstance(error, ValidationError) else str(error)
            log.warning("a request for completions was not answered: %s", what)
            return
        await bus.publish(message.reply, batch.wire())

    await bus.subscribe(Subjects(run).stored_completions, answer, queue="history", waiting=WAITING)
    await bus.flush()
