"""One message that says of itself that it is a test, and what a recipient answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from oven_controller.notify.delivery import attempt
from oven_controller.notify.message import Notice, message
from oven_controller.notify.recipients import Recipient


@dataclass(frozen=True)
class Result:
    """What came back."""

    recipient: str
    failure: str
    said: str
    seconds: float

    def line(self) -> str:
        """For people."""
        if self.failure:
            return f"{self.recipient}: not taken: {self.failure}"
        return f"{self.recipient}: taken{f' ({self.said})' if self.said else ''} after {self.seconds:.2f} s"

    def fields(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "recipient": self.recipient,
            "taken": not self.failure,
            "said": self.failure or self.said,
            "seconds": round(self.seconds, 3),
        }


def send(recipient: Recipient) -> Result:
    """Send it, within the time limits of any message."""
    now = datetime.now(UTC)
    notice = Notice(
        key=f"test-{now.timestamp():.0f}",
        kind="ended",
        severity="info",
        seq=0,
        time=now,
        tick=0,
        step=0,
        title="a test of notifications",
        text="Somebody typed `oven-controller notify test`. Nothing has happened to any run.",
    )
    began = time.monotonic()
    answer = attempt(recipient, message("test", [notice], 1, now))
    return Result(recipient.name, answer.failure, answer.said, time.monotonic() - began)
