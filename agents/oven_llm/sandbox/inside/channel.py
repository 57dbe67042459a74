"""The child's end of the pipes to the host: whole frames, read and written without buffering."""

from __future__ import annotations

import os
import sys

from oven_llm.sandbox.frames import FRAME_BYTES, HEADER, frame

PIECE, LARGE = 1 << 16, 1 << 20
"""Bytes that are read at a time: above 128 KiB the allocator asks the kernel each time, which pays for large frames."""


class Channel:
    """Ends this process where the host is gone, or sent what is not a frame."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self._held = bytearray()
        self._exit = os._exit  # code in the sandbox may put another into `os`

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Raises FrameError for a frame that is too long."""
        data = memoryview(frame(kind, payload))
        while data:
            data = data[os.write(self._replies, data) :]

    def receive(self) -> tuple[int, bytes]:
        held = self._held
        while len(held) < HEADER.size:
            held += self._piece(PIECE)
        kind, length = HEADER.unpack_from(held)
        if length > FRAME_BYTES:
            self._exit(3)
        end = HEADER.size + length
        while len(held) < end:
            held += self._piece(max(PIECE, min(end - len(held), LARGE)))
        payload = bytes(memoryview(held)[HEADER.size : end])
        del held[:end]
        return kind, payload

    def _piece(self, size: int) -> bytes:
        piece = os.read(self._requests, size)
        if not piece:
            self._exit(0)
        return piece


def redirect_standard_streams() -> None:
    """Descriptors 0 to 2 are /dev/null from now on: what goes around `sys.stdout` reaches no one."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
