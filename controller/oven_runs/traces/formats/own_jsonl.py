"""Our own format: a trace a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oven_runs.traces import jsonl
from oven_runs.traces.jsonl import BadLine
from oven_runs.traces.records import Trace


@dataclass(frozen=True)
class OwnJsonl:
    """Loses nothing. A folder's file is traces.jsonl."""

    about: str = "ours: a trace a line, steps with states, rewards and sampled tokens"
    loses: dict[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()

    def claims(self, path: Path) -> bool:
        """Whether the first line is a trace of any version."""
        file = _file(path)
        if not file.is_file():
            return False
        first: Any = next((row for _, row in jsonl.rows(file)), None)
        return isinstance(first, dict) and first.get("kind") == "trace"

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """Each line's trace, or why it holds none."""
        return jsonl.scan(_file(path), Trace)

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """Replace the file."""
        return jsonl.write(_file(path), traces)


def _file(path: Path) -> Path:
    return path / "traces.jsonl" if path.is_dir() else path


FORMAT = OwnJsonl()
