"""The graph that `--graph` names, as what answers a question that a graph of any origin answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oven_core.protocol.messages import Message
from oven_kg.checked_graph import described, is_yaml
from oven_kg.cli.import_command import large_graph
from oven_kg.service.endpoints import Answers

if TYPE_CHECKING:
    from oven_kg.service.large_answers import LargeAnswers

Answer = TypeVar("Answer", bound=Message)


def answered(graph: Path | None, endpoint: str, asked: Message, kind: type[Answer]) -> Answer:
    """The answer of the built-in graph, of one of causes and remedies in a file, which may have faults, or of any
    other: a folder of `kg import`, or a file that it reads. Raises ConfigError for a graph that cannot be read, and for
    a request that it cannot answer."""
    if graph is None or is_yaml(graph):
        found: Answers | LargeAnswers = Answers(described(graph))
    else:
        arrays = large_graph(graph)
        from oven_kg.service.large_answers import LargeAnswers

        found = LargeAnswers(arrays)
    answer = found.endpoints[endpoint][1](asked)
    assert isinstance(answer, kind)
    return answer
