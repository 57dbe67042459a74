"""Events: the entries of a run's log, and their form in exported files and in `history` replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from oven_core.protocol import names
from oven_core.protocol.codec import Malformed, decode
from oven_core.protocol.messages import LogMessage

if TYPE_CHECKING:  # a reader of log.jsonl does not need it
    from oven_core.protocol.history_requests import LoggedEvent

MESSAGE_ID, SIGNATURE = "Nats-Msg-Id", "Oven-Signature"
"""Names of the headers with a message's id and signature."""
_DATA_FIELD = ', "data": '

UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)
"""The time of an event that was received live. Only events that are read from the log have their storage time."""


@dataclass(slots=True, eq=False)
class Entry:
    """An entry to append. The log ignores an entry that repeats a message id within bus.streams.DUPLICATES_S."""

    subject: str
    data: bytes
    message_id: str


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the log. A body that is not a message is Malformed."""

    seq: int
    subject: str
    data: bytes
    time: datetime
    body: LogMessage | Malformed
    traceparent: str = field(default="", compare=False, repr=False)
    """The trace context, if any. It is not part of the message and is not exported."""
    message_id: str = ""
    signature: str = ""
    """The signature as received. `signing.Keyring` verifies it."""

    @classmethod
    def read(
        cls,
        seq: int,
        subject: str,
        data: bytes,
        time: datetime,
        traceparent: str = "",
        *,
        message_id: str = "",
        signature: str = "",
    ) -> Event:
        """Decode an event. Its signature is not verified yet."""
        return cls(seq, subject, data, time, decode(names.kind(subject), data), traceparent, message_id, signature)

    @classmethod
    def from_message(
        cls,
        seq: int,
        subject: str,
        data: bytes,
        time: datetime,
        headers: Mapping[str, str] | None,
        traceparent: str = "",
    ) -> Event:
        """Decode an event with the message id and signature in its headers. The signature is not verified yet."""
        message_id, signature = _read_header(headers, MESSAGE_ID), _read_header(headers, SIGNATURE)
        return cls.read(seq, subject, data, time, traceparent, message_id=message_id, signature=signature)

    @property
    def author(self) -> str:
        """The last token of the subject (`names.author`)."""
        return names.author(self.subject)

    def line(self) -> str:
        """Return the event as a line of `log --json` and log.jsonl.

        The last field, `data`, is the message itself, so that an exported log replays byte for byte. Line breaks in it
        become spaces; `raw` then holds the original bytes as a string. If the entry is Malformed, `data` is an object
        with the reason and the bytes as a string. Bytes that are not UTF-8 are escaped as in PEP 383."""
        head: dict[str, Any] = {
            "seq": self.seq,
            "time": self.time.astimezone(UTC).isoformat(),
            "subject": self.subject,
            "id": self.message_id,
            "signature": self.signature,
        }
        text = self.data.decode(errors="surrogateescape")
        if isinstance(self.body, Malformed):
            head["type"] = "Malformed"
            data = json.dumps({"fault": self.body.fault, "reason": self.body.reason, "raw": text})
        else:
            head["type"], data = self.body.type, text.replace("\r", " ").replace("\n", " ")
            if data != text:
                head["raw"] = text
        return json.dumps(head).removesuffix("}") + _DATA_FIELD + data + "}"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Decode an exported line. The signature is not verified yet.

        Raises ValueError for any other line, for example a truncated one."""
        line = line.strip()
        head, separator, data = line.partition(_DATA_FIELD)
        if not separator or not data.endswith("}"):
            raise ValueError(f"not a line of an exported log: {line[:80]!r}")
        entry = from_json(head + "}")
        raw = entry.get("raw", data[:-1])
        if entry["type"] == "Malformed":
            raw = json.loads(raw)["raw"]
        return cls.read(
            entry["seq"],
            entry["subject"],
            raw.encode(errors="surrogateescape"),
            datetime.fromisoformat(entry["time"]),
            message_id=entry["id"],
            signature=entry["signature"],
        )

    def to_logged(self) -> LoggedEvent:
        """Return the event in the form of a `history` reply."""
        from oven_core.protocol.history_requests import LoggedEvent

        try:
            body = self.data.decode()
        except UnicodeDecodeError:
            body = ""
        return LoggedEvent(
            seq=self.seq,
            time=self.time.astimezone(UTC).isoformat(),
            subject=self.subject,
            id=self.message_id,
            signature=self.signature,
            body=body,
        )

    @classmethod
    def from_logged(cls, entry: LoggedEvent) -> Event:
        """Decode an event of a `history` reply. The signature is not verified yet."""
        time = datetime.fromisoformat(entry.time)
        data = entry.body.encode()
        return cls.read(entry.seq, entry.subject, data, time, message_id=entry.id, signature=entry.signature)


def _read_header(headers: Mapping[str, str] | None, name: str) -> str:
    """Return a header's value, or an empty string if it is longer than 256 characters or not printable ASCII."""
    value = (headers or {}).get(name, "")
    return value if len(value) <= 256 and value.isascii() and value.isprintable() else ""
