"""A sandbox's limits on time, memory, output and calls. The kernel or the host enforces them, never the child."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from oven_core.errors import ConfigError
from oven_llm.sandbox.frames import FRAME_BYTES

MB: Final = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Raises ConfigError for a limit that is not above 0, or larger than a frame."""

    block_s: float = 30.0
    """Wall time of a block in seconds, without the time in the host's functions. Then its process is killed."""
    start_s: float = 30.0
    """Seconds until a child must be confined and ready. It takes 0.1 s, and more on a busy machine."""
    memory_bytes: int = 1024 * MB
    """Size of the child's address space, with interpreter and context. A context of 50 MB may take 200 MB as text."""
    output_bytes: int = 100_000
    """Output of a block on both streams. The child drops and counts the rest."""
    answer_bytes: int = 1 * MB
    """Size of FINAL's answer as JSON."""
    call_bytes: int = 16 * MB
    """Size of a call's arguments as JSON: enough for a `worker_batch` of long prompts."""
    calls: int = 10_000
    """Calls of the host's functions per block. 50 MB in chunks of 8,000 tokens are 1,600 calls."""
    received_bytes: int = 256 * MB
    """Size of everything that a block sends."""
    file_bytes: int = 100 * MB
    """Size of a file that code writes in the profile `tests`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} is {value}; give a number above 0")
        for name in ("output_bytes", "answer_bytes", "call_bytes"):
            if getattr(self, name) > FRAME_BYTES:
                raise ConfigError(f"{name} is {getattr(self, name)}; at most {FRAME_BYTES} fit into a frame")
