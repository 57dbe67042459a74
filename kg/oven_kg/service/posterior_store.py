"""A file of posteriors: read at the start, and written whenever an outcome is added."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_core.protocol.graph_requests import OutcomeReport, OutcomeTaken
from oven_kg.graph.knowledge import Knowledge
from oven_kg.reasoning.posteriors import Posteriors
from oven_kg.service.endpoints import Answers

if TYPE_CHECKING:
    from oven_kg.service.large_answers import LargeAnswers

LIMIT = 64 * 2**20
"""Bytes: many times what as many reports as are kept can take."""


class PersistentAnswers(Answers):
    """Answers whose posteriors stand in `path`, which need not be there yet. Raises ConfigError when it holds no
    posteriors, or cannot be written."""

    def __init__(self, graph: Knowledge, path: Path, large: LargeAnswers | None = None) -> None:
        super().__init__(graph, read(path) if path.exists() else None, large)
        self._path = path

    def take(self, *reports: OutcomeReport) -> OutcomeTaken:
        taken = super().take(*reports)
        if taken.new:
            write(self._path, self.posteriors)
        return taken


def read(path: Path) -> Posteriors:
    """Raises ConfigError."""
    try:
        if path.stat().st_size > LIMIT:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; posteriors have at most {LIMIT}")
        return Posteriors.load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def write(path: Path, posteriors: Posteriors) -> None:
    """In one piece: who reads it sees the one before or this one. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, posteriors.body, private=True)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
