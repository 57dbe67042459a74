"""The contents of a line of console output."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Record:
    """The contents of a line, or of a table of several lines."""

    counters: dict[str, int] = field(default_factory=dict)
    """Values of `step`, `epoch`, `episode`, `timestep` and `batch`."""
    values: dict[str, float] = field(default_factory=dict)
    """The measurements by name."""
    is_transient: bool = False
    """Whether the line was overwritten later, like all but the last state of a progress bar."""
