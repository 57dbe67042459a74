"""Load networkx's node-link JSON: {"nodes": [{"id": …}], "edges" or "links": [{"source": …, "target": …}]}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.graph_batches import Batch, EdgeRow, LoaderOptions, NodeRow, check_declared, to_batches
from oven_kg.loaders.input_file import MAX_JSON_BYTES, GraphFile, decode
from oven_kg.loaders.triples import DEFAULT_RELATION, parse_edge, parse_name


def load_node_link(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load node-link JSON. Each edge of an undirected graph becomes two edges. Raises ConfigError with the location."""
    return to_batches(check_declared(_read_rows(graph_file), graph_file.path))


def _read_rows(graph_file: GraphFile) -> Iterator[NodeRow | EdgeRow]:
    graph = _parse(graph_file)
    nodes, edges = graph.get("nodes"), graph.get("edges", graph.get("links"))
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise ConfigError(
            f"{graph_file.path} has no lists `nodes` and `edges` (or `links`); write it with networkx's node_link_data"
        )
    for number, node in enumerate(nodes, 1):
        location = f"{graph_file.path}, node {number}"
        fields = node if isinstance(node, dict) else {}
        kind = fields.get("kind")
        yield NodeRow(parse_name(fields.get("id"), location, "id"), kind if isinstance(kind, str) else "", number)
    for number, values in enumerate(edges, 1):
        location = f"{graph_file.path}, edge {number}"
        if not isinstance(values, dict):
            raise ConfigError(f"{location} is not an object; write an object with `source` and `target`")
        edge = parse_edge(graph_file.path, {"relation": DEFAULT_RELATION, **values}, location, number)
        yield edge
        if graph.get("directed") is False:
            yield EdgeRow(edge.target, edge.relation, edge.source, edge.weight, number)


def _parse(graph_file: GraphFile) -> dict[str, Any]:
    with graph_file.open() as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ConfigError(
            f"{graph_file.path} has more than {MAX_JSON_BYTES:,} bytes of JSON; write it as GraphML or as JSON lines, "
            "which are read as a stream"
        )
    text = decode(graph_file, "the JSON text", data.removeprefix(b"\xef\xbb\xbf"))
    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{graph_file.path} is not valid JSON: {reason(error)}; it may be truncated") from error
    return graph if isinstance(graph, dict) else {}
