"""The outcome of a block of code: how it ended, what it printed, what it answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Ended = Literal["completed", "error", "timeout", "died", "protocol", "limit"]
"""`completed`: it came to its end, or to FINAL. `error`: an exception that it did not catch. The others cost the
process: `timeout`, its wall time; `died`, by itself; `protocol`, it sent what is not a frame; `limit`, it called or
sent too much."""


@dataclass(frozen=True)
class Answer:
    """What FINAL was given, of any JSON value: 0, "" and None are answers, too."""

    value: Any


@dataclass(frozen=True)
class Block:
    """`error` is one line and says why `ended` is not `completed`; a traceback stands at the end of `stderr`."""

    ended: Ended
    stdout: str
    stderr: str
    error: str
    answer: Answer | None
    """The first answer, also of a block that did not come to its end."""
    refused: tuple[str, ...]
    """Why each answer was none: FINAL of what JSON cannot hold, or of too much."""
    calls: int
    """Calls of the host's functions."""
    own_s: float
    """Wall time in the child: what the deadline counts."""
    host_s: float
    """Wall time in the host's functions."""
    dropped: int
    """Characters that were printed above the limit."""
    namespace_lost: bool
    """The process is gone, and what it had defined; the next block gets another, with the same variables assigned."""
