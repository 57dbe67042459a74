"""Neo4j's graphs as JSON lines, as `apoc.export.json` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Edge, Node, Options, batched
from oven_kg.loaders.column_names import RELATED, WEIGHTS
from oven_kg.loaders.json_lines import objects, text_of, weight_of
from oven_kg.loaders.node_names import NodeNames
from oven_kg.loaders.source import Input

NAMES: Final = ("name", "title", "label")
"""Properties by which a node is called; without one it is called by its id."""


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """A node's labels are its kind, joined as Cypher writes them. Raises ConfigError with the line."""
    return batched(_rows(held, options.names), "line")


def _rows(held: Input, names: NodeNames) -> Iterator[Node | Edge]:
    for number, values in objects(held):
        place = f"{held.path}, line {number}"
        properties = values.get("properties")
        known: dict[str, Any] = properties if isinstance(properties, dict) else {}
        if values.get("type") == "node":
            id_ = text_of(values.get("id"), place, "id")
            called = next((str(known[name]) for name in NAMES if isinstance(known.get(name), str | int)), "")
            labels = values.get("labels")
            kind = ":".join(map(str, labels)) if isinstance(labels, list) else ""
            yield Node(names.declare(id_, called, place), kind, number)
        elif values.get("type") == "relationship":
            source, target = (names.of(_id(values.get(end), place, end), place) for end in ("start", "end"))
            weight = next((known[name] for name in WEIGHTS if name in known), None)
            relation = text_of(values.get("label") or RELATED, place, "label")
            yield Edge(source, relation, target, weight_of(weight, place), number)
        else:
            raise ConfigError(
                f'{place}: the type is {values.get("type")!r:.60}; Neo4j\'s lines are of type "node" or "relationship"'
            )


def _id(end: object, place: str, what: str) -> str:
    return text_of(end.get("id") if isinstance(end, dict) else None, place, f"id of the {what}")
