"""Graphs as .graphml, as networkx, yEd and LightRAG write it.

Read by expat as a stream, without a document type or entities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.parsers import expat

from oven_controller.errors import ConfigError
from oven_kg.loaders.rows import RELATIONS, TEXT, WEIGHTS, Named, Row, Triple, bounded

DEPTH: Final = 32
"""Elements within each other."""
CHUNK: Final = 64 * 1024
KINDS: Final = ("kind", "entity_type")
TEXTS: Final = ("text", "description", "label")
RELATED: Final = "RELATED"


def rows(path: Path) -> Iterator[Row]:
    """A node's kind and text, and an edge's relation and weight, are the `data` of those names. Raises ConfigError."""
    reading = _Reading(path)
    with bounded(path).open("rb") as file:
        while chunk := file.read(CHUNK):
            reading.feed(chunk)
            yield from reading.taken()
    reading.feed(b"", final=True)
    yield from reading.taken()


class _Reading:
    """The state of one document: the element that is open, and its data."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        # Entities could blow up a small file, or name other files: who needs none loses nothing.
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse
        self._depth = 0
        self._keys: dict[str, str] = {}
        self._item: dict[str, str] | None = None
        self._data: dict[str, str] = {}
        self._key = ""
        self._rows: list[Row] = []

    def feed(self, chunk: bytes, final: bool = False) -> None:
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            raise ConfigError(f"{self._path} is not GraphML: {error}") from error

    def taken(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows

    def _refuse(self, *_: object) -> None:
        raise ConfigError(f"{self._path} declares a document type or entities; GraphML needs neither, take them out")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH:
            raise ConfigError(f"{self._path} has elements {self._depth} deep; GraphML needs no more than {DEPTH}")
        name = tag.rpartition("}")[2]
        if name == "key":
            self._keys[attributes.get("id", "")] = attributes.get("attr.name", "").lower()
            if len(self._keys) > TEXT:
                raise ConfigError(f"{self._path} declares more than {TEXT} keys")
        elif name in ("node", "edge"):
            self._item, self._data = attributes, {}
        elif name == "data" and self._item is not None:
            self._key = self._keys.get(attributes.get("key", ""), "")

    def _characters(self, text: str) -> None:
        if self._key and self._item is not None:
            self._data[self._key] = (self._data.get(self._key, "") + text)[: TEXT + 1]

    def _end(self, tag: str) -> None:
        self._depth -= 1
        name = tag.rpartition("}")[2]
        if name == "data":
            self._key = ""
        elif name in ("node", "edge") and self._item is not None:
            line = self._parser.CurrentLineNumber
            self._rows.append(self._node(line) if name == "node" else self._edge(line))
            self._item = None

    def _node(self, line: int) -> Named:
        assert self._item is not None
        if not (id_ := self._item.get("id")):
            raise ConfigError(f"{self._path}, line {line}: a node has no id")
        return Named(id_, self._first(KINDS), self._first(TEXTS)[:TEXT])

    def _edge(self, line: int) -> Triple:
        assert self._item is not None
        src, dst = self._item.get("source"), self._item.get("target")
        if not src or not dst:
            raise ConfigError(f"{self._path}, line {line}: an edge has no source or no target")
        weight = self._first(WEIGHTS)
        try:
            return Triple(src, self._first(RELATIONS) or RELATED, dst, float(weight) if weight else 1.0)
        except ValueError:
            raise ConfigError(f"{self._path}, line {line}: the weight {weight[:40]!r} is not a number") from None

    def _first(self, names: tuple[str, ...]) -> str:
        return next((self._data[name].strip() for name in names if name in self._data), "")
