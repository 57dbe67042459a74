"""Neo4j's graphs as CSV with typed headers, as `neo4j-admin database import` reads them.

A file holds nodes (`:ID`, `:LABEL`) or relationships (`:START_ID`, `:END_ID`, `:TYPE`); a header is its first line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Final

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Edge, Node, Options, batched
from oven_kg.loaders.column_names import RELATED, WEIGHTS
from oven_kg.loaders.json_lines import LINE, weight_of
from oven_kg.loaders.neo4j_jsonl import NAMES
from oven_kg.loaders.node_names import NodeNames
from oven_kg.loaders.source import Input, lines, utf8

HEADER: Final = re.compile(rb"(?:^|[,\t;])\"?[\w ]*:(?:ID|START_ID|END_ID)\b")
FIELD: Final = re.compile(r"(?P<name>[^:]*)(?::(?P<type>\w+)(?:\((?P<space>[^)]*)\))?.*)?")
LABELS: Final = ";"
"""Between the labels of a node."""


def has_relationships(held: Input) -> bool:
    return re.search(rb":START_ID\b", held.head.splitlines()[0]) is not None if held.head else False


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """Nodes by their property `name`, `title` or `label`, else by their id. Raises ConfigError with the line."""
    return batched(_rows(held, options.names), "line")


def _rows(held: Input, names: NodeNames) -> Iterator[Node | Edge]:
    records = _records(held)
    fields = [FIELD.fullmatch(column.strip()) for column in next(records, (1, []))[1]]
    typed = {found["type"]: (n, found["space"] or "") for n, found in enumerate(fields) if found and found["type"]}
    properties = {found["name"].lower(): n for n, found in enumerate(fields) if found and found["name"]}
    wanted = ("START_ID", "END_ID") if {"START_ID", "END_ID"} & typed.keys() else ("ID",)
    if missing := [f":{name}" for name in wanted if name not in typed]:
        raise ConfigError(f"{held.path}, line 1 has no column {missing[0]}; name it, e.g. `person{missing[0]}`")
    for line, values in records:
        place = f"{held.path}, line {line}"
        if len(values) != len(fields):
            raise ConfigError(
                f"{place} has {len(values)} columns and should have {len(fields)}; is the file cut short?"
            )
        ids = [_id(values[n], space, place) for n, space in (typed[name] for name in wanted)]
        if wanted == ("ID",):
            called = next((values[properties[name]] for name in NAMES if name in properties), "")
            kind = values[typed["LABEL"][0]].replace(LABELS, ":") if "LABEL" in typed else ""
            yield Node(names.declare(ids[0], called or ids[0].rpartition("/")[2], place), kind, line)
        else:
            source, target = (names.of(id_, place) for id_ in ids)
            weight = next((values[properties[name]] for name in WEIGHTS if name in properties), None)
            relation = values[typed["TYPE"][0]] if "TYPE" in typed else ""
            yield Edge(source, relation or RELATED, target, weight_of(weight, place), line)


def _id(value: str, space: str, place: str) -> str:
    """An id is one among those of its space alone."""
    if not value:
        raise ConfigError(f"{place}: a node without an id; give each one")
    return f"{space}/{value}" if space else value


def _records(held: Input) -> Iterator[tuple[int, list[str]]]:
    """Each row, with the line in which it ends. Raises ConfigError."""
    place = 1

    def texts() -> Iterator[str]:
        nonlocal place
        for place, line in lines(held, LINE):
            yield utf8(held, f"line {place}", line.removeprefix(b"\xef\xbb\xbf"))

    try:
        for values in csv.reader(texts(), strict=True):
            yield place, values
    except csv.Error as error:
        raise ConfigError(f"{held.path}, line {place}: {error}; close the quote, or shorten the value") from error
