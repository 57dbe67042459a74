"""A sandbox's limits on time, memory, output and calls, which the kernel or the host enforces."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from oven_core.errors import ConfigError
from oven_llm.sandbox.message_format import MAX_FRAME_BYTES

MB: Final = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Limits of a sandbox. Raises ConfigError for a limit that is not above 0 or is larger than a frame."""

    block_s: float = 30.0
    """Maximum seconds per block, excluding time in the host's functions. After that, the process is killed."""
    start_s: float = 30.0
    """Maximum seconds until a child is confined and ready. This takes 0.1 s, or more on a busy machine."""
    memory_bytes: int = 1024 * MB
    """Maximum size of the child's address space. A context of 50 MB may take 200 MB as a string."""
    output_bytes: int = 100_000
    """Maximum total size of a block's standard output and error. The rest is dropped and counted."""
    answer_bytes: int = 1 * MB
    """Maximum size of FINAL's answer as JSON."""
    call_bytes: int = 16 * MB
    """Maximum size of a call's arguments as JSON: enough for a `worker_batch` of long prompts."""
    calls: int = 10_000
    """Maximum calls to the host's functions per block. A context of 50 MB takes 1,600 calls of 8,000 tokens."""
    received_bytes: int = 256 * MB
    """Maximum bytes that a block may send."""
    file_bytes: int = 100 * MB
    """Maximum size of a file that code writes in the profile `tests`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} is {value}; expected a number above 0")
        for name in ("output_bytes", "answer_bytes", "call_bytes"):
            if getattr(self, name) > MAX_FRAME_BYTES:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; the maximum is {MAX_FRAME_BYTES}, the size of a frame"
                )
