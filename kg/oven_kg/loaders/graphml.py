"""Load GraphML, as written by networkx, yEd and LightRAG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oven_core.errors import ConfigError
from oven_kg.loaders.graph_batches import Batch, EdgeRow, LoaderOptions, NodeRow, check_declared, to_batches
from oven_kg.loaders.input_file import HEAD_BYTES, GraphFile
from oven_kg.loaders.triples import DEFAULT_RELATION, RELATIONS, WEIGHTS, parse_weight
from oven_kg.loaders.xml_events import XmlEvents

MAX_CHARACTERS: Final = 1_001
"""Maximum stored characters of an attribute. It is one more than a name may have, so that a long name is rejected."""
MAX_KEYS: Final = 1_000
"""Maximum number of attributes that a file may declare."""
KINDS: Final = ("kind", "entity_type")


def load_graphml(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load GraphML. A node's kind, and an edge's relation and weight, come from `data` with those names. An undirected
    edge becomes two edges. Raises ConfigError with the line."""
    return to_batches(check_declared(_read_rows(graph_file), graph_file.path, "line"), "line")


def _read_rows(graph_file: GraphFile) -> Iterator[NodeRow | EdgeRow]:
    parser = _GraphML(graph_file)
    with graph_file.open() as file:
        while chunk := file.read(HEAD_BYTES):
            parser.feed(chunk)
            yield from parser.pop_rows()
    parser.feed(b"", final=True)
    yield from parser.pop_rows()


class _GraphML(XmlEvents):
    """A parser that collects the nodes and edges of each chunk."""

    def __init__(self, graph_file: GraphFile) -> None:
        super().__init__(graph_file, "GraphML")
        self._rows: list[NodeRow | EdgeRow] = []
        self._keys: dict[str, str] = {}
        """The name of each declared attribute in lower case, by id."""
        self._is_undirected = False
        self._element: dict[str, str] | None = None
        """The XML attributes of the open node or edge."""
        self._line = 1
        """The line where the open node or edge begins."""
        self._data: dict[str, str] = {}
        """The values of the element's `data`, by name."""
        self._data_name = ""
        """The name of the `data` element that is being read."""

    def pop_rows(self) -> list[NodeRow | EdgeRow]:
        """Return the nodes and edges completed since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "key":
            self._keys[attributes.get("id", "")] = attributes.get("attr.name", "").lower()
            if len(self._keys) > MAX_KEYS:
                raise ConfigError(f"{self.location}: more than {MAX_KEYS} attributes are declared; remove some")
        elif tag == "graph":
            self._is_undirected = attributes.get("edgedefault") == "undirected"
        elif tag in ("node", "edge"):
            self._element, self._data, self._line = attributes, {}, self.line
        elif tag == "data" and self._element is not None:
            self._data_name = self._keys.get(attributes.get("key", ""), "")

    def text(self, text: str) -> None:
        if self._data_name and self._element is not None:
            self._data[self._data_name] = (self._data.get(self._data_name, "") + text)[:MAX_CHARACTERS]

    def end(self, tag: str) -> None:
        if tag == "data":
            self._data_name = ""
        elif tag in ("node", "edge") and self._element is not None:
            location = f"{self.graph_file.path}, line {self._line}"
            if tag == "node":
                self._add_node(self._element, location)
            else:
                self._add_edge(self._element, location)
            self._element = None

    def _add_node(self, element: dict[str, str], location: str) -> None:
        name = _required_attribute(element, "id", "a node", location)
        self._rows.append(NodeRow(name, self._first_value(KINDS), self._line))

    def _add_edge(self, element: dict[str, str], location: str) -> None:
        source, target = (_required_attribute(element, end, "an edge", location) for end in ("source", "target"))
        relation = self._first_value(RELATIONS) or DEFAULT_RELATION
        weight = parse_weight(self._first_value(WEIGHTS), location)
        self._rows.append(EdgeRow(source, relation, target, weight, self._line))
        directed = element.get("directed")
        if directed == "false" or (directed != "true" and self._is_undirected):
            self._rows.append(EdgeRow(target, relation, source, weight, self._line))

    def _first_value(self, names: tuple[str, ...]) -> str:
        return next((self._data[name].strip() for name in names if name in self._data), "")


def _required_attribute(element: dict[str, str], attribute: str, element_name: str, location: str) -> str:
    if not (value := element.get(attribute)):
        raise ConfigError(f"{location}: {element_name} has no {attribute}; give it one")
    return value
