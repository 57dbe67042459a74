"""Shared options of the `kg` commands, and a function that queries the graph named by --graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from oven_controller.cli.kg_import import large_graph
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Message
from oven_kg.checked_graph import is_yaml, load_unchecked
from oven_kg.service.endpoints import Answers

if TYPE_CHECKING:
    from oven_kg.service.large_answers import LargeAnswers

Reply = TypeVar("Reply", bound=Message)
Request = TypeVar("Request", bound=BaseModel)

GraphFile = Annotated[
    Path | None,
    typer.Option("--graph", metavar="PATH", help="A graph's file, or a large one's folder, for the built-in one."),
]


def checked_request(model: type[Request], values: Mapping[str, object]) -> Request:
    """Build a request. Raises ConfigError, which names the first wrong value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None


def graph_reply(
    graph: Path | None, endpoint: str, request: Message, kind: type[Reply], topics: Iterable[str] = ()
) -> Reply:
    """Return the reply of a graph: the built-in one, a YAML file, or any other graph, which is a folder of `kg import`
    or a file that it reads. A YAML graph may have faults. Raises ConfigError for a graph that cannot be read, for a
    request that it cannot answer, and for one of `topics` that it does not have."""
    answers: Answers | LargeAnswers
    nodes: Container[str]
    if graph is None or is_yaml(graph):
        answers = Answers(load_unchecked(graph))
        nodes = answers.graph.nodes
    else:
        arrays = large_graph(graph)
        from oven_kg.service.large_answers import LargeAnswers

        answers, nodes = LargeAnswers(arrays), arrays
    if missing := next((topic for topic in topics if topic not in nodes), ""):
        raise ConfigError(
            f"the graph has no topic {missing!r}: name one of its nodes, another graph with --graph, or what the topic "
            f"builds on with --needs {missing}:NEED"
        )
    reply = answers.endpoints[endpoint][1](request)
    assert isinstance(reply, kind)
    return reply
