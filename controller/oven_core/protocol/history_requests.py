"""The messages of the `history` service, from which agents and monitors get parts of the log.

These messages are not in the log. They follow the same rules as the messages in oven_core.protocol.messages.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oven_core.protocol.messages import Message, MessagePart


class HistoryRequest(Message):
    """A request from an agent or a monitor to the mesh for the next events of the log, on `oven.<run>.history`."""

    type: Literal["HistoryRequest"] = "HistoryRequest"
    after: int = Field(default=0, ge=0, description="sequence number of the last event that the sender has")
    limit: int = Field(default=256, ge=1, le=1024)


class LoggedEvent(MessagePart):
    """One entry of the log, unchanged, so that the receiver can verify it."""

    seq: int
    time: str = Field(description="time at which the server stored it, RFC 3339, UTC")
    subject: str
    id: str = Field(default="", description="message id")
    signature: str = Field(default="", description="ed25519, base64, over subject, message id and body")
    body: str = Field(description="the message's bytes; empty if they are not UTF-8")


class HistoryBatch(Message):
    """The reply to a HistoryRequest, with events in the order of the log."""

    type: Literal["HistoryBatch"] = "HistoryBatch"
    events: tuple[LoggedEvent, ...]
    head: int = Field(description="last sequence number of the log at the time of the reply")
