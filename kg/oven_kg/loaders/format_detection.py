"""Detects a graph's format by its first bytes. The file name decides only if they are ambiguous."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_kg.loaders.graph_import import Loader
from oven_kg.loaders.input_file import GraphFile

UNSUPPORTED_FILES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x80", "a pickle"),
    (b"\x93NUMPY", "a numpy array"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "in UTF-16"),
    (b"\xfe\xff", "in UTF-16"),
)
"""First bytes of file types that no loader reads, with a description of each."""
XML_ROOTS: Final = {"graphml": "graphml", "gexf": "gexf", "RDF": "rdfxml"}
"""The format for each XML root element. No loader reads GEXF, but detecting it gives a clear error."""
NTRIPLES_LINE: Final = re.compile(
    rb'\s*(?:<[^<>"\s]+>|_:\S+)\s+<[^<>"\s]+>\s+(?:<[^<>"\s]+>|_:\S+|"(?:[^"\\]|\\.)*"(?:@[\w-]+|\^\^<[^<>\s]+>)?)'
    rb"\s*\.\s*(?:#.*)?$"
)
"""A line of N-Triples (W3C 2014)."""
SUFFIXES: Final = {
    ".ttl": "turtle", ".nt": "ntriples", ".rdf": "rdfxml", ".owl": "rdfxml", ".jsonld": "jsonld", ".csv": "csv",
    ".tsv": "tsv", ".jsonl": "jsonl", ".json": "node-link", ".graphml": "graphml", ".parquet": "parquet",
    ".trig": "trig", ".nq": "nquads", ".gexf": "gexf",
}  # fmt: skip
COMPRESSED: Final = (".gz", ".bz2")


def files_with_loaders(paths: Sequence[Path], format_name: str = "") -> list[tuple[GraphFile, Loader]]:
    """Return each file with its loader. `format_name` is the format of all files. If it is empty, each is detected."""
    pairs = []
    for path in paths:
        graph_file = GraphFile(path)
        refuse_unsupported(graph_file)
        pairs.append((graph_file, _find_loader(format_name or detect(graph_file))))
    return pairs


def has_languages(loader: Loader) -> bool:
    """Return whether the loader's format gives the language of each node."""
    return loader is _find_loader("conceptnet")


def _find_loader(name: str) -> Loader:
    loader: Loader = plugins.load("kg_loaders", "format of graphs", name)
    return loader


def detect(graph_file: GraphFile) -> str:
    """Return the name of a file's format. Raises ConfigError if it is unknown."""
    refuse_unsupported(graph_file)
    head = graph_file.head
    if head.startswith(b"PAR1"):
        return "parquet"
    head = head.removeprefix(b"\xef\xbb\xbf")
    suffixes = [suffix.lower() for suffix in graph_file.path.suffixes if suffix.lower() not in COMPRESSED]
    suffix_format = SUFFIXES.get(suffixes[-1], "") if suffixes else ""
    if name := _xml_format(head) or _json_format(head) or _rdf_format(head, suffix_format) or _table_format(head):
        return name
    if suffix_format:
        return suffix_format
    format_names = ", ".join(plugins.find_plugins("kg_loaders"))
    raise ConfigError(f"the format of {graph_file.path} is unknown; use --format with one of {format_names}")


def refuse_unsupported(graph_file: GraphFile) -> None:
    """Raise ConfigError for a folder, and for a known file type that is not a graph."""
    path = graph_file.path
    if path.is_dir():
        raise ConfigError(f"{path} is a folder that `kg import` did not write (no graph.json); name the graph's files")
    for magic, description in UNSUPPORTED_FILES:
        if graph_file.head.startswith(magic):
            raise ConfigError(f"{path} is {description}, which is not supported; export the graph as text, e.g. CSV")


def _xml_format(head: bytes) -> str:
    if not head.lstrip().startswith(b"<"):
        return ""
    text = re.sub(rb"<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\])?\s*>", b"", head, flags=re.S).lstrip()
    root = re.match(rb"<(?:[\w.-]+:)?([A-Za-z]+)[\s>/]", text)
    return XML_ROOTS.get(root[1].decode(), "") if root else ""


def _json_format(head: bytes) -> str:
    text = head.lstrip()
    if not text.startswith((b"{", b"[")):
        return ""
    first_line = _json_object(text.partition(b"\n")[0])
    if first_line is not None and not {"@context", "@id", "@graph", "nodes", "edges", "links"} & first_line.keys():
        return "jsonl"
    if re.search(rb'"@(?:context|id|graph)"\s*:', text):
        return "jsonld"
    return "node-link" if re.search(rb'"(?:nodes|directed|multigraph|links|edges)"\s*:', text) else ""


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _rdf_format(head: bytes, suffix_format: str) -> str:
    if re.search(rb"^\s*(?:@prefix|@base|PREFIX|BASE)\s", head, re.M | re.I):
        return "trig" if suffix_format == "trig" else "turtle"
    statements = (line for line in head.split(b"\n")[:50] if line.strip() and not line.lstrip().startswith(b"#"))
    return "ntriples" if NTRIPLES_LINE.match(next(statements, b"")) else ""


def _table_format(head: bytes) -> str:
    first_line = next(iter(head.splitlines()), b"")
    cells = first_line.split(b"\t")
    if len(cells) == 5 and cells[1].startswith(b"/r/") and cells[4].lstrip().startswith(b"{"):
        return "conceptnet"
    if len(cells) > 2:
        return "tsv"
    return "csv" if first_line.count(b",") > 1 else ""
