"""The graph that `--graph` names, as what answers a question that a graph of any origin answers."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from oven_controller.protocol.messages import Message
from oven_kg.checked_graph import described
from oven_kg.service.endpoints import Answers, opened

Answer = TypeVar("Answer", bound=Message)


def answered(graph: Path | None, endpoint: str, asked: Message, kind: type[Answer]) -> Answer:
    """The answer of the built-in graph, of a graph in a file, which may have faults, or of a large graph in a folder.
    Raises ConfigError for a graph that cannot be read, and for a request that it cannot answer."""
    found = opened(graph) if graph is not None and graph.is_dir() else Answers(described(graph))
    answer = found.endpoints[endpoint][1](asked)
    assert isinstance(answer, kind)
    return answer
