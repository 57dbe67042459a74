"""Standard output and error of a block: sent to the host as they come, up to a limit that both share."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

EAGER: Final = 64
"""Writes of a block that are sent at once, so that a block that is killed has said where it was."""
PIECE: Final = 4096
"""Bytes that are held back after those."""


def cut(text: str, most: int) -> tuple[bytes, int]:
    """The UTF-8 of as many whole characters as fit into `most` bytes, and the number of those that do not."""
    if most <= 0:
        return b"", len(text)
    data = text[:most].encode(errors="backslashreplace")  # a character is a byte or more
    if len(data) <= most and len(text) <= most:
        return data, 0
    whole = data[:most].decode(errors="ignore")
    return whole.encode(), max(0, len(text) - len(whole))


class Budget:
    """Bytes that a block may still print, and how many characters it printed beyond."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.left, self.dropped, self.eager = most, 0, EAGER

    def renew(self) -> None:
        self.left, self.dropped, self.eager = self._most, 0, EAGER


class CapturedOutput(io.TextIOBase):
    """A text stream; `send` takes its UTF-8, in pieces of any length."""

    def __init__(self, send: Callable[[bytes], None], budget: Budget) -> None:
        super().__init__()
        self._send, self._budget = send, budget
        self._held: list[bytes] = []
        self._size = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        budget = self._budget
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        kept, dropped = cut(text, budget.left)
        budget.dropped += dropped
        if not kept:
            return len(text)
        budget.left -= len(kept)
        self._held.append(kept)
        self._size += len(kept)
        if self._size >= PIECE or (budget.eager > 0 and "\n" in text):
            budget.eager -= 1
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held, self._size = [], 0
            self._send(data)
