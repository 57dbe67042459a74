"""Sends a block's standard output and error to the host while it runs, up to a shared size limit."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

IMMEDIATE_WRITES: Final = 64
"""Number of times per block that output is sent at the end of a line, so that a killed block's progress is visible."""
CHUNK_BYTES: Final = 4096
"""Bytes of later output to collect before they are sent."""


def truncate(text: str, limit: int) -> tuple[bytes, int]:
    """Return the longest prefix that fits into `limit` bytes of UTF-8, and the number of dropped characters."""
    if limit <= 0:
        return b"", len(text)
    data = text[:limit].encode(errors="backslashreplace")  # a character takes at least one byte
    if len(data) <= limit and len(text) <= limit:
        return data, 0
    prefix = data[:limit].decode(errors="ignore")
    return prefix.encode(), max(0, len(text) - len(prefix))


class OutputBudget:
    """Tracks the bytes that a block may still print, and counts the characters dropped beyond the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reset()

    def reset(self) -> None:
        """Start a new block."""
        self.remaining_bytes = self._limit
        self.dropped_count = 0
        self.immediate_writes_left = IMMEDIATE_WRITES


class CapturedOutput(io.TextIOBase):
    """A text stream that passes its output to `send` as UTF-8, in chunks of any length."""

    def __init__(self, send: Callable[[bytes], None], budget: OutputBudget) -> None:
        super().__init__()
        self._send, self._budget = send, budget
        self._chunks: list[bytes] = []
        self._pending_bytes = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        budget = self._budget
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data, dropped_count = truncate(text, budget.remaining_bytes)
        budget.dropped_count += dropped_count
        if not data:
            return len(text)
        budget.remaining_bytes -= len(data)
        self._chunks.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= CHUNK_BYTES or (budget.immediate_writes_left > 0 and "\n" in text):
            budget.immediate_writes_left -= 1
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._chunks:
            data = b"".join(self._chunks)
            self._chunks, self._pending_bytes = [], 0
            self._send(data)
