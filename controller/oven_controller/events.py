"""One entry of the log: its place in the order, where it stood, when it was stored, and the message."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

from oven_controller import names
from oven_controller.messages import Body, LoggedEvent
from oven_controller.wire import Malformed, decode

_DATA = ', "data": '


@dataclass(frozen=True, slots=True)
class Event:
    seq: int
    subject: str
    data: bytes
    time: datetime
    body: Body | Malformed
    traceparent: str = field(default="", compare=False, repr=False)
    """The trace context that it came with, if any: no part of what was said, and in no line."""

    @classmethod
    def read(cls, seq: int, subject: str, data: bytes, time: datetime, traceparent: str = "") -> Event:
        return cls(seq, subject, data, time, decode(names.kind(subject), data), traceparent)

    @property
    def author(self) -> str:
        return names.author(self.subject)

    def line(self) -> str:
        """One line of `log --json` and of log.jsonl. The message's own bytes stand in it untouched, as the last field,
        so that an exported log replays byte for byte. (A line break can only be white space in JSON.)"""
        if isinstance(self.body, Malformed):
            kind = "Malformed"
            data = json.dumps({"reason": self.body.reason, "raw": self.data.decode(errors="replace")})
        else:
            kind, data = self.body.type, self.data.decode().replace("\r", " ").replace("\n", " ")
        head = {"seq": self.seq, "time": self.time.astimezone(UTC).isoformat(), "subject": self.subject, "type": kind}
        return json.dumps(head)[:-1] + _DATA + data + "}"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Raises ValueError on a line that `line` did not write, e.g. one that was cut."""
        line = line.strip()
        head, found, data = line.partition(_DATA)
        if not found or not data.endswith("}"):
            raise ValueError(f"not a line of an exported log: {line[:80]!r}")
        entry = json.loads(head + "}")
        raw = data[:-1]
        if entry["type"] == "Malformed":
            raw = json.loads(raw)["raw"]
        return cls.read(entry["seq"], entry["subject"], raw.encode(), datetime.fromisoformat(entry["time"]))

    def logged(self) -> LoggedEvent:
        return LoggedEvent.model_validate_json(self.line())

    @classmethod
    def from_logged(cls, entry: LoggedEvent) -> Event:
        """The event of a `history` answer. Its body is the logged one; its bytes may be spelt differently."""
        data = str(entry.data["raw"]) if entry.type == "Malformed" else json.dumps(entry.data)
        return cls.read(entry.seq, entry.subject, data.encode(), datetime.fromisoformat(entry.time))
