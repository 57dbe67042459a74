"""Limits of a sandbox: time, memory, output, calls. The kernel or the host holds each, none the child alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from oven_core.errors import ConfigError
from oven_llm.sandbox.frames import FRAME_BYTES

MB: Final = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Raises ConfigError for one that is not above zero, or more than a frame holds."""

    block_s: float = 30.0
    """Wall time of a block, without what the host's functions take; then its process is killed."""
    start_s: float = 30.0
    """Until a child stands behind its walls: it takes a tenth of a second, and more on a busy machine."""
    memory_bytes: int = 1024 * MB
    """Of the child's address space, interpreter and context included: a context of 50 MB may take 200 as text."""
    output_bytes: int = 100_000
    """Of what a block prints, both streams together; the rest is counted and dropped in the child."""
    answer_bytes: int = 1 * MB
    """Of FINAL's answer as JSON."""
    call_bytes: int = 16 * MB
    """Of a call's arguments as JSON: a `worker_batch` of long prompts fits."""
    calls: int = 10_000
    """Calls of the host's functions in a block: 50 MB in chunks of 8,000 tokens are 1,600."""
    received_bytes: int = 256 * MB
    """Of all that a block sends."""
    file_bytes: int = 100 * MB
    """Of one file that code writes, in the profile `tests`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} is {value}; give a number above 0")
        for name in ("output_bytes", "answer_bytes", "call_bytes"):
            if getattr(self, name) > FRAME_BYTES:
                raise ConfigError(f"{name} is {getattr(self, name)}; at most {FRAME_BYTES} fit into a frame")
