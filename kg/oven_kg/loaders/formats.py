"""Formats, told by what a file begins with: its name decides only where the content leaves it open."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_kg.loaders import graphrag, neo4j_csv
from oven_kg.loaders.importing import Loader
from oven_kg.loaders.source import Input

NO_GRAPH: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\x93NUMPY", "an array of numpy's"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\xfd7zXZ", "packed with xz"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "in UTF-16"),
    (b"\xfe\xff", "in UTF-16"),
)
"""What a file begins with that no loader reads, and what it is then."""
ROOTS: Final = {"graphml": "graphml", "gexf": "gexf", "RDF": "rdfxml"}
STATEMENT: Final = re.compile(
    rb'\s*(?:<[^<>"\s]+>|_:\S+)\s+<[^<>"\s]+>\s+(?:<[^<>"\s]+>|_:\S+|"(?:[^"\\]|\\.)*"(?:@[\w-]+|\^\^<[^<>\s]+>)?)'
    rb"\s*(?P<graph><[^<>\s]+>|_:\S+)?\s*\.\s*(?:#.*)?$"
)
"""A line of N-Triples, or of N-Quads with a graph (W3C 2014)."""
SUFFIXES: Final = {
    ".ttl": "turtle", ".trig": "trig", ".nt": "ntriples", ".nq": "nquads", ".rdf": "rdfxml", ".owl": "rdfxml",
    ".jsonld": "jsonld", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "node-link", ".graphml": "graphml",
    ".gexf": "gexf", ".parquet": "parquet",
}  # fmt: skip
PACKED: Final = (".gz", ".bz2")


def inputs(paths: Sequence[Path], format_: str = "") -> list[tuple[Input, Loader]]:
    """Each file with its loader, in the order in which they have to be read. `format_` is that of all. Raises
    ConfigError for a file whose format cannot be told, and UnknownNameError for a format that no loader has."""
    given = _loader(format_) if format_ else None
    found = [(held, format_ or told(held)) for held in map(Input, paths)]
    for held, _ in found:
        refuse_other_files(held)
    # A stable sort: relationships refer to nodes that other files hold.
    found.sort(key=lambda pair: pair[1] == "neo4j-csv" and neo4j_csv.has_relationships(pair[0]))
    return [(held, given or _loader(name)) for held, name in found]


def has_languages(loader: Loader) -> bool:
    """Whether the format says of each node what language it is of."""
    return loader is _loader("conceptnet")


def _loader(name: str) -> Loader:
    found: Loader = plugins.load("kg_loaders", "format of graphs", name)
    return found


def told(held: Input) -> str:
    """The format's name. Raises ConfigError."""
    if held.path.is_dir():
        if graphrag.is_folder(held.path):
            return "graphrag"
        raise ConfigError(
            f"{held.path} is a folder without `graph.json`, which `kg import` writes, and without GraphRAG's "
            "`entities.parquet` and `relationships.parquet`; name the graph's files"
        )
    refuse_other_files(held)
    head = held.head
    if head.startswith(b"PAR1"):
        return "parquet"
    head = head.removeprefix(b"\xef\xbb\xbf")
    found = _markup(head) or _json(head) or _statements(head, held) or _table(head)
    if found := found or SUFFIXES.get(_suffix(held.path), ""):
        return found
    known = ", ".join(plugins.points("kg_loaders"))
    raise ConfigError(f"the format of {held.path} cannot be told; give it with --format, one of {known}")


def refuse_other_files(held: Input) -> None:
    """Raises ConfigError for a file that is known to be something else than a graph."""
    if held.path.is_dir():
        return
    for magic, what in NO_GRAPH:
        if held.head.startswith(magic):
            raise ConfigError(
                f"{held.path} is {what}, which is not read; write the graph as text, e.g. as CSV, in UTF-8"
            )


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    return suffixes[-1] if suffixes else ""


def _markup(head: bytes) -> str:
    if not head.lstrip().startswith(b"<"):
        return ""
    text = re.sub(rb"<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\])?\s*>", b"", head, flags=re.S).lstrip()
    root = re.match(rb"<(?:[\w.-]+:)?([A-Za-z]+)[\s>/]", text)
    return ROOTS.get(root[1].decode(), "") if root else ""


def _json(head: bytes) -> str:
    text = head.lstrip()
    if not text.startswith((b"{", b"[")):
        return ""
    first = _object(text.partition(b"\n")[0])
    if first is not None:
        if "causal_relation" in first:
            return "causenet"
        if first.get("type") in ("node", "relationship") and "id" in first:
            return "neo4j-jsonl"
        if not {"@context", "@id", "@graph", "nodes", "edges", "links"} & first.keys():
            return "jsonl"
    if re.search(rb'"@(?:context|id|graph)"\s*:', text):
        return "jsonld"
    return "node-link" if re.search(rb'"(?:nodes|directed|multigraph|links|edges)"\s*:', text) else ""


def _object(line: bytes) -> dict[str, Any] | None:
    """The object that a whole line is."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        # Longer than the head; its first key says enough.
        key = re.match(rb'\{\s*"(causal_relation)"', line)
        return {key[1].decode(): {}} if key else None
    return found if isinstance(found, dict) else None


def _statements(head: bytes, held: Input) -> str:
    if re.search(rb"^\s*(?:@prefix|@base|PREFIX|BASE)\s", head, re.M | re.I):
        return "trig" if _suffix(held.path) == ".trig" else "turtle"
    told = [line for line in head.split(b"\n")[:50] if line.strip() and not line.lstrip().startswith(b"#")]
    if told and (match := STATEMENT.match(told[0])):
        quads = match["graph"] or any(found["graph"] for line in told if (found := STATEMENT.match(line)))
        return "nquads" if quads or _suffix(held.path) == ".nq" else "ntriples"
    return ""


def _table(head: bytes) -> str:
    first = head.splitlines()[0] if head.splitlines() else b""
    cells = first.split(b"\t")
    if len(cells) == 5 and cells[1].startswith(b"/r/") and cells[4].lstrip().startswith(b"{"):
        return "conceptnet"
    if neo4j_csv.HEADER.search(first):
        return "neo4j-csv"
    if len(cells) > 2:
        return "tsv"
    return "csv" if first.count(b",") > 1 else ""
