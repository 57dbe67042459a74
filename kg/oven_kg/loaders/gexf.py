"""Graphs as GEXF 1.1 to 1.3, as Gephi and networkx write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oven_kg.loaders.batches import Batch, Node, Options, batched
from oven_kg.loaders.column_names import RELATIONS
from oven_kg.loaders.graphml import KINDS, TEXT, Rows, events
from oven_kg.loaders.node_names import NodeNames
from oven_kg.loaders.source import Input

BOTH_WAYS: Final = ("undirected", "mutual")


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """Nodes by their labels. An edge's relation is its `kind`, the attribute of that name or its label; an edge that
    is not directed goes both ways. Raises ConfigError with the line."""
    return batched(events(held, _Gexf(held)), "line")


class _Gexf(Rows):
    def __init__(self, held: Input) -> None:
        super().__init__(held, "GEXF")
        self._type = "undirected"  # the default of the format
        self._attributes_of = ""
        self._names = NodeNames()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "graph":
            self._type = attributes.get("defaultedgetype", self._type)
        elif tag == "attributes":
            self._attributes_of = attributes.get("class", "")
        elif tag == "attribute":
            self.declare_key(self._attributes_of + attributes.get("id", ""), attributes.get("title", ""))
        elif tag in ("node", "edge"):
            self._close(self.item)  # a node may hold nodes
            self.open_item(attributes | {"": tag})
        elif tag == "attvalue" and self.item is not None:
            key = self.keys.get(self.item[""] + attributes.get("for", ""), "")
            self.data[key] = attributes.get("value", "")[:TEXT]

    def end(self, tag: str) -> None:
        if tag in ("node", "edge"):
            self._close(self.item)

    def _close(self, item: dict[str, str] | None) -> None:
        if item is None:
            return
        place = f"{self.held.path}, line {self.begun}"
        if item[""] == "node":
            name = self._names.declare(self.needed("id", "a node"), item.get("label", ""), place)
            self.rows.append(Node(name, self.first(KINDS), self.begun))
        else:
            source, target = (self._names.of(self.needed(end, "an edge"), place) for end in ("source", "target"))
            relation = item.get("kind") or self.first(RELATIONS) or item.get("label", "")
            both = item.get("type", self._type) in BOTH_WAYS
            self.add_edge(source, target, relation, item.get("weight") or self.data.get("weight", ""), both)
        self.item = None
