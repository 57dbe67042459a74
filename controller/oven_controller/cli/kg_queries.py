"""The option `--graph` of the `kg` commands, and functions that build a request and send it to the chosen graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from pydantic import BaseModel, ValidationError

from oven_controller.cli.kg_large_graphs import load_large_graph
from oven_controller.cli.options import PATH
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Message
from oven_kg.checked_graph import is_yaml, load_unchecked
from oven_kg.service.endpoints import PriorService

if TYPE_CHECKING:
    from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints

Reply = TypeVar("Reply", bound=Message)
Request = TypeVar("Request", bound=BaseModel)

graph_option = click.option(
    "--graph",
    "graph_file",
    type=PATH,
    metavar="PATH",
    help="A graph file or a `kg import` folder, instead of the built-in graph.",
)


def checked_request(model: type[Request], values: Mapping[str, object]) -> Request:
    """Build a request. Raises ConfigError with the first invalid value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None


def query_graph(
    graph: Path | None, endpoint: str, request: Message, reply_type: type[Reply], topics: Iterable[str] = ()
) -> Reply:
    """Send a request to the built-in graph, or to the graph at a path: a YAML file, a `kg import` folder, or a file
    that `kg import` reads. A YAML graph may have faults. Raises ConfigError if the graph cannot be read, cannot answer
    the request, or lacks one of `topics`."""
    service: PriorService | LargeGraphEndpoints
    nodes: Container[str]
    if graph is None or is_yaml(graph):
        service = PriorService(load_unchecked(graph))
        nodes = service.graph.nodes
    else:
        arrays = load_large_graph(graph)
        from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints

        service, nodes = LargeGraphEndpoints(arrays), arrays
    if missing := next((topic for topic in topics if topic not in nodes), ""):
        raise ConfigError(
            f"the graph has no topic {missing!r}; use one of its nodes, choose another graph with --graph, or declare "
            f"a prerequisite with --needs {missing}:NEED"
        )
    _, handler = service.endpoints[endpoint]
    reply = handler(request)
    assert isinstance(reply, reply_type)
    return reply
