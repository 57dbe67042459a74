"""Graphs as networkx's node-link .json.

The object is {"nodes": [{"id": …}], "edges" or "links": [{"source": …, "target": …}]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oven_controller.errors import ConfigError
from oven_kg.loaders.rows import WHOLE, Named, Row, Triple, bounded, columns, triple

RELATED = "RELATED"
"""The relation of an edge that names none."""


def rows(path: Path) -> Iterator[Row]:
    """Raises ConfigError."""
    try:
        held = json.loads(bounded(path, WHOLE).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {str(error)[:200]}") from error
    nodes = held.get("nodes") if isinstance(held, dict) else None
    edges = held.get("edges", held.get("links")) if isinstance(held, dict) else None
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise ConfigError(f"{path} has no lists `nodes` and `edges` (or `links`); it is not a node-link graph")
    for number, node in enumerate(nodes, 1):
        id_ = node.get("id") if isinstance(node, dict) else None
        if not isinstance(id_, str | int) or isinstance(id_, bool):
            raise ConfigError(f"{path}, node {number}: it has no `id` that is a name or a number")
        yield Named(str(id_), _text(node.get("kind")), _text(node.get("text") or node.get("description")))
    for number, edge in enumerate(edges, 1):
        yield _edge(path, edge, f"{path}, edge {number}")


def _edge(path: Path, edge: Any, where: str) -> Triple:
    if not isinstance(edge, dict):
        raise ConfigError(f"{where} is not an object")
    values = {"relation": RELATED, **edge}
    return triple(values, columns(path, values), where)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
