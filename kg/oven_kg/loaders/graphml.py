"""Graphs as GraphML, as networkx, yEd and LightRAG write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Edge, Node, Options, batched
from oven_kg.loaders.column_names import RELATED, RELATIONS, WEIGHTS
from oven_kg.loaders.json_lines import weight_of
from oven_kg.loaders.node_names import Declared
from oven_kg.loaders.source import HEAD, Input
from oven_kg.loaders.xml_events import XmlEvents

TEXT: Final = 1_001
"""Characters of an attribute that are kept: one more than a name may have."""
KEYS: Final = 1_000
"""Attributes that a file may declare."""
KINDS: Final = ("kind", "entity_type")


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """A node's kind, and an edge's relation and weight, are the `data` of those names; an undirected edge goes both
    ways. Raises ConfigError with the line."""
    return batched(events(held, _GraphML(held)), "line")


def events(held: Input, reader: Rows) -> Iterator[Node | Edge]:
    """What a reader finds while the file is fed to it."""
    with held.open() as file:
        while chunk := file.read(HEAD):
            reader.feed(chunk)
            yield from reader.taken()
    reader.feed(b"", final=True)
    yield from reader.taken()


class Rows(XmlEvents):
    """Nodes and edges of an XML document, each with its attributes."""

    def __init__(self, held: Input, what: str) -> None:
        super().__init__(held, what)
        self.keys: dict[str, str] = {}
        """Id of an attribute → its name, in lower case."""
        self.item: dict[str, str] | None = None
        """The node's or edge's own attributes, while it is open."""
        self.data: dict[str, str] = {}
        self.begun = 0
        """The line in which the item begins."""
        self.rows: list[Node | Edge] = []

    def taken(self) -> list[Node | Edge]:
        rows, self.rows = self.rows, []
        return rows

    def declare_key(self, id_: str, name: str) -> None:
        self.keys[id_] = name.lower()
        if len(self.keys) > KEYS:
            raise ConfigError(f"{self.place}: more than {KEYS} attributes are declared; leave some out")

    def open_item(self, attributes: dict[str, str]) -> None:
        self.item, self.data, self.begun = attributes, {}, self.line

    def first(self, names: tuple[str, ...]) -> str:
        return next((self.data[name].strip() for name in names if name in self.data), "")

    def needed(self, name: str, what: str) -> str:
        assert self.item is not None
        if not (value := self.item.get(name)):
            raise ConfigError(f"{self.held.path}, line {self.begun}: {what} has no {name}; give it one")
        return value

    def add_edge(self, source: str, target: str, relation: str, weight: str, undirected: bool) -> None:
        place = f"{self.held.path}, line {self.begun}"
        edge = Edge(source, relation or RELATED, target, weight_of(weight, place), self.begun)
        self.rows.append(edge)
        if undirected:
            self.rows.append(Edge(target, edge.relation, source, edge.weight, self.begun))


class _GraphML(Rows):
    def __init__(self, held: Input) -> None:
        super().__init__(held, "GraphML")
        self._key = ""
        self._undirected = False
        self._declared = Declared()
        self._ends: dict[str, Callable[[], None]] = {"node": self._node, "edge": self._edge}

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "key":
            self.declare_key(attributes.get("id", ""), attributes.get("attr.name", ""))
        elif tag == "graph":
            self._undirected = attributes.get("edgedefault") == "undirected"
        elif tag in self._ends:
            self.open_item(attributes)
        elif tag == "data" and self.item is not None:
            self._key = self.keys.get(attributes.get("key", ""), "")

    def text(self, text: str) -> None:
        if self._key and self.item is not None:
            self.data[self._key] = (self.data.get(self._key, "") + text)[:TEXT]

    def end(self, tag: str) -> None:
        if tag == "data":
            self._key = ""
        elif tag == "graphml":
            self._declared.end()
        elif tag in self._ends and self.item is not None:
            self._ends[tag]()
            self.item = None

    def _node(self) -> None:
        name = self.needed("id", "a node")
        self._declared.declare(name, f"{self.held.path}, line {self.begun}")
        self.rows.append(Node(name, self.first(KINDS), self.begun))

    def _edge(self) -> None:
        assert self.item is not None
        source, target = self.needed("source", "an edge"), self.needed("target", "an edge")
        self._declared.edge(source, target, f"{self.held.path}, line {self.begun}")
        directed = {"true": True, "false": False}.get(self.item.get("directed", ""), not self._undirected)
        self.add_edge(source, target, self.first(RELATIONS), self.first(WEIGHTS), not directed)
