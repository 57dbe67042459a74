"""Append messages to a run's log, one at a time or in atomic batches."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from oven_core.bus.log_reader import LogReader
from oven_core.bus.nats_client import BusClient
from oven_core.errors import BusError, reason
from oven_core.protocol.events import MESSAGE_ID, SIGNATURE, Entry
from oven_core.security.signing import Signer
from oven_core.telemetry import tracing

CONFIRM_TIMEOUT_S = 2.0
"""Maximum seconds that an append waits for the log's confirmation."""
_WRONG_LAST_SEQUENCE = 10071
"""The server's error code for an append to a subject that has a newer message than the append allows."""


class AlreadyLoggedError(BusError):
    """Raised if the subject has a newer message than the append allows, because another replica appended first."""


class LogClient(LogReader):
    """Appends to runs' logs and reads them. The subclass `connection.Bus` opens and closes the connection."""

    def __init__(self, client: BusClient, signer: Signer | None) -> None:
        super().__init__(client)
        self.signer = signer
        """Signs appended messages. Readers check the signatures and whether the signer may write on the subject."""

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish without waiting for an answer. A missing listener is not an error.

        While the server is unreachable, up to 32 MiB are buffered and sent later. Raises BusError if the buffer is full
        or the connection is closed for good."""
        try:
            await self.client.publish(subject, data, headers=headers)
        except (NatsError, OSError) as error:
            raise BusError(f"{subject} was not published: {error}") from error

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        once: bool = False,
        after_sequence: int = 0,
        traceparent: str = "",
        signature: str | None = None,
    ) -> int:
        """Append to the log, signed if this connection has credentials, and return the sequence number.

        With `once`, append only if the subject has no message newer than `after_sequence`, and otherwise raise
        AlreadyLoggedError. A given `signature` is used instead of signing, for example to copy a signed message. An
        empty one leaves the message unsigned. Raises BusError if the log did not store the message."""
        headers = self._entry_headers(subject, data, message_id, traceparent, signature)
        if once:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(after_sequence)
        return await self._send_confirmed(subject, data, headers)

    async def append_all(self, entries: Sequence[Entry], batch: str, *, traceparents: Sequence[str] = ()) -> int:
        """Append at most 1,000 entries, in order and with no other entry in between. Return the last sequence number.

        The log stores all of them or none, as an atomic batch (nats-architecture-and-design, ADR-50) with the unique
        name `batch`. If the log already has one of the messages, it refuses all of them. Raises BusError if the log
        refused the entries or did not confirm them. Unconfirmed entries may be in the log."""
        count = len(entries)
        entries_and_parents = zip(entries, traceparents or [""] * count, strict=True)
        for number, (entry, traceparent) in enumerate(entries_and_parents, 1):
            headers = self._entry_headers(entry.subject, entry.data, entry.message_id, traceparent)
            headers["Nats-Batch-Id"], headers["Nats-Batch-Sequence"] = batch, str(number)
            if number == count:
                headers["Nats-Batch-Commit"] = "1"
                return await self._send_confirmed(entry.subject, entry.data, headers, count)
            await self.publish(entry.subject, entry.data, headers)
        raise ValueError("cannot append an empty batch")

    async def _send_confirmed(self, subject: str, data: bytes, headers: dict[str, str], batch_size: int = 0) -> int:
        """Send a message, and return its sequence number once the log has stored it.

        For the last message of a batch, `batch_size` is the number of entries in the batch. Raises AlreadyLoggedError
        or BusError.
        """
        try:
            answer = json.loads(await self.client.request_ack(subject, data, headers, CONFIRM_TIMEOUT_S))
        except NoRespondersError as error:
            raise BusError(
                f"no log accepts {subject}: either the server's JetStream is off, for example because its disk is "
                "full, or the run's streams do not exist; see nats-server.log"
            ) from error
        except (TimeoutError, NatsError, OSError, ValueError) as error:
            raise BusError(f"the log did not confirm {subject}: {reason(error)}") from error
        try:
            refusal = answer.get("error")
            if refusal is None:
                if batch_size and answer.get("count") != batch_size:
                    raise BusError("this nats-server does not support atomic batches; use version 2.12 or newer")
                return int(answer["seq"])
            code, description = refusal.get("err_code"), refusal.get("description")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BusError(f"the log did not confirm {subject}: its reply was not a confirmation") from error
        if code == _WRONG_LAST_SEQUENCE:
            raise AlreadyLoggedError(f"{subject} is already in the log")
        raise BusError(f"the log refused {subject}: {description} ({code})")

    def _entry_headers(
        self, subject: str, data: bytes, message_id: str, traceparent: str, signature: str | None = None
    ) -> dict[str, str]:
        """Return the headers of an entry: its trace context, message id and signature."""
        headers = tracing.headers(traceparent) or {}
        if message_id:
            headers[MESSAGE_ID] = message_id
        if signature is None and self.signer is not None:
            signature = self.signer.sign(subject, message_id, data)
        if signature:
            headers[SIGNATURE] = signature
        return headers
