"""Read stored messages from a run's stream of sampled completions."""

from __future__ import annotations

from datetime import datetime

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, reason
from oven_core.protocol.completion_messages import CompletionsBatch, SampledGroup, StoredGroup
from oven_core.protocol.names import Subjects, completions_stream

BATCH_BYTES = 512 * 1024
"""Maximum bytes of a batch, half of the server's payload limit. A single group has at most half as many bytes."""
NO_STREAM = 10059
"""The server's error code for a missing stream."""


async def read_batch(bus: Bus, run: str, after: int, limit: int) -> CompletionsBatch:
    """Return the newest `limit` groups after sequence number `after`, or as many of them, oldest first, as fit.

    Messages that are not a SampledGroup are skipped. Raises BusError."""
    stream, subject, js = completions_stream(run), Subjects(run).completions, bus.jetstream
    groups: list[StoredGroup] = []
    size = 0
    try:
        state = (await js.stream_info(stream)).state
        next_seq = max(state.first_seq, after + 1, state.last_seq - limit + 1)
        while next_seq <= state.last_seq:
            message = await js.get_msg(stream, seq=next_seq, subject=subject, next=True)
            seq, data = message.seq or next_seq, message.data or b""
            size += len(data)
            if groups and size > BATCH_BYTES:
                break
            if (group := decode_group(data)) is not None:
                groups.append(StoredGroup(seq=seq, time=_format_time(message.time), group=group))
            next_seq = seq + 1
    except NotFoundError as error:
        if groups:  # the remaining messages were deleted in the meantime
            return CompletionsBatch(groups=tuple(groups), head=groups[-1].seq)
        return CompletionsBatch(groups=(), head=after, has_stream=error.err_code != NO_STREAM)
    except (TimeoutError, NatsError, OSError) as error:
        raise BusError(f"the sampled completions of run {run!r} cannot be read: {reason(error)}") from error
    return CompletionsBatch(groups=tuple(groups), head=state.last_seq)


def decode_group(data: bytes) -> SampledGroup | None:
    """Decode a group. Return None if the bytes are not a SampledGroup."""
    try:
        return SampledGroup.model_validate_json(data)
    except ValidationError:
        return None


def _format_time(time: datetime | str | None) -> str:
    return time.isoformat() if isinstance(time, datetime) else str(time or "")
