"""Graphs as networkx's node-link JSON.

The object is {"nodes": [{"id": …}], "edges" or "links": [{"source": …, "target": …}]}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Edge, Node, Options, batched
from oven_kg.loaders.column_names import RELATED, columns
from oven_kg.loaders.json_lines import text_of, weight_of
from oven_kg.loaders.json_stream import elements
from oven_kg.loaders.node_names import Declared
from oven_kg.loaders.source import Input

LISTS: Final = frozenset({"nodes", "edges", "links"})


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """An edge of an undirected graph goes both ways. Raises ConfigError with the place."""
    return batched(_rows(held))


def _rows(held: Input) -> Iterator[Node | Edge]:
    declared = Declared()
    undirected = re.search(rb'"directed"\s*:\s*false', held.head.partition(b"[")[0]) is not None
    counted = dict.fromkeys(LISTS, 0)
    for key, element in elements(held, LISTS):
        counted[key] += 1
        place = f"{held.path}, {'node' if key == 'nodes' else 'edge'} {counted[key]}"
        if not isinstance(element, dict):
            raise ConfigError(f"{place} is not an object; write one with `id`, or with `source` and `target`")
        if key == "nodes":
            name = text_of(element.get("id"), place, "id")
            declared.declare(name, place)
            kind = element.get("kind")
            yield Node(name, kind if isinstance(kind, str) else "", counted[key])
        else:
            edge = _edge(held, element, place, counted[key])
            declared.edge(edge.source, edge.target, place)
            yield edge
            if undirected:
                yield Edge(edge.target, edge.relation, edge.source, edge.weight, edge.place)
    if not counted["nodes"]:
        raise ConfigError(
            f"{held.path} has no lists `nodes` and `edges` (or `links`); write it with networkx's node_link_data"
        )
    declared.end()


def _edge(held: Input, element: dict[str, Any], place: str, number: int) -> Edge:
    values = {"relation": RELATED, **element}
    source, relation, target, weight = columns(held.path, values)
    return Edge(
        text_of(values[source], place, source),
        text_of(values[relation], place, relation),
        text_of(values[target], place, target),
        weight_of(values.get(weight) if weight else None, place),
        number,
    )
