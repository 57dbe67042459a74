"""Graphs as networkx's node-link JSON, read element by element.

The object is {"nodes": [{"id": …}], "edges" or "links": [{"source": …, "target": …}]}.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from json.decoder import JSONDecodeError
from typing import Any, BinaryIO, Final

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Edge, Node, Options, batched
from oven_kg.loaders.declared_nodes import DeclaredNodes
from oven_kg.loaders.input_file import HEAD, Input, not_utf8
from oven_kg.loaders.json_lines import parse_name, parse_weight
from oven_kg.loaders.triple_columns import RELATED, triple_columns

LISTS: Final = frozenset({"nodes", "edges", "links"})
ELEMENT_CHARACTERS: Final = 4 * 2**20
"""The longest element, key or other value."""
BLANK: Final = re.compile(r"[ \t\r\n]*")


def load_node_link(graph_file: Input, options: Options) -> Iterator[Batch]:
    """Load node-link JSON. An edge of an undirected graph becomes two. Raises ConfigError with the location."""
    return batched(_rows(graph_file))


def _rows(graph_file: Input) -> Iterator[Node | Edge]:
    declared = DeclaredNodes()
    undirected = re.search(rb'"directed"\s*:\s*false', graph_file.head.partition(b"[")[0]) is not None
    counts = dict.fromkeys(LISTS, 0)
    with graph_file.open() as file:
        for key, element in _ListReader(graph_file, file).elements():
            counts[key] += 1
            location = f"{graph_file.path}, {'node' if key == 'nodes' else 'edge'} {counts[key]}"
            if not isinstance(element, dict):
                raise ConfigError(f"{location} is not an object; write one with `id`, or with `source` and `target`")
            if key == "nodes":
                name, kind = parse_name(element.get("id"), location, "id"), element.get("kind")
                declared.add_node(name, location)
                yield Node(name, kind if isinstance(kind, str) else "", counts[key])
                continue
            edge = _edge(graph_file, element, location, counts[key])
            declared.add_edge(edge.source, edge.target, location)
            yield edge
            if undirected:
                yield Edge(edge.target, edge.relation, edge.source, edge.weight, edge.number)
    if not counts["nodes"]:
        raise ConfigError(
            f"{graph_file.path} has no lists `nodes` and `edges` (or `links`); write it with networkx's node_link_data"
        )
    declared.finish()


def _edge(graph_file: Input, element: dict[str, Any], location: str, number: int) -> Edge:
    values = {"relation": RELATED, **element}
    columns = triple_columns(graph_file.path, values)
    return Edge(
        parse_name(values[columns.subject], location, columns.subject),
        parse_name(values[columns.relation], location, columns.relation),
        parse_name(values[columns.object], location, columns.object),
        parse_weight(values.get(columns.weight) if columns.weight else None, location),
        number,
    )


class _ListReader:
    """Reads the elements of a large object's lists, without the whole file in memory."""

    def __init__(self, graph_file: Input, file: BinaryIO) -> None:
        self._graph_file, self._file = graph_file, file
        self._json = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._position, self._at_end = "", 0, False
        self._line = 1

    def elements(self) -> Iterator[tuple[str, Any]]:
        """(key, element) for each element of the outermost object's lists in LISTS. Raises ConfigError."""
        self._expect("{")
        if self._next_character() == "}":
            return
        while True:
            key = self._value()
            self._expect(":")
            if key in LISTS and self._next_character() == "[":
                self._expect("[")
                if self._next_character() == "]":
                    self._expect("]")
                else:
                    yield key, self._value()
                    while self._expect(",]") == ",":
                        yield key, self._value()
            else:
                self._value()
            if self._expect(",}") == "}":
                return

    def _read_more(self) -> bool:
        """Drop the text before the position, and append the next chunk. Returns False at the end of the file."""
        if self._at_end:
            return False
        self._line += self._text.count("\n", 0, self._position)
        chunk = self._file.read(max(HEAD, len(self._text) - self._position))  # doubles the buffer for a long element
        self._at_end = not chunk
        try:
            self._text = self._text[self._position :] + self._utf8.decode(chunk, final=self._at_end)
        except UnicodeDecodeError as error:
            raise not_utf8(self._graph_file, f"line {self._line} or later", error.object[error.start]) from None
        self._position = 0
        return True

    def _next_character(self) -> str:
        """Skip blanks, and return the next character without consuming it; "" at the end."""
        while True:
            blank = BLANK.match(self._text, self._position)
            self._position = blank.end() if blank else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def _expect(self, marks: str) -> str:
        """Consume the next character, which must be one of `marks`."""
        character = self._next_character()
        if not character or character not in marks:
            expected = " or ".join(map(repr, marks))
            raise self._error(f"{repr(character) if character else 'the end'} instead of {expected}")
        self._position += 1
        return character

    def _value(self) -> Any:
        self._next_character()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._position)
            except RecursionError:
                raise self._error("it is nested too deeply") from None
            except JSONDecodeError as error:
                if len(self._text) - self._position > ELEMENT_CHARACTERS:
                    raise self._error(f"a value of more than {ELEMENT_CHARACTERS:,} letters, or {error.msg}") from None
                if not self._read_more():
                    raise self._error(error.msg) from None
                continue
            if end < len(self._text) or not self._read_more():  # a number may continue in the next chunk
                self._position = end
                return value

    def _error(self, problem: str) -> ConfigError:
        line = self._line + self._text.count("\n", 0, self._position)
        return ConfigError(
            f"{self._graph_file.path}, line {line} is not JSON: {problem}; is the file cut short? Write it again"
        )
