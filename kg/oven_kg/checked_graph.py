"""Load a graph of causes and remedies, the built-in one or one from a file, and check it with the lint."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_kg.graph.graph_yaml import Records, read
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.graph.lint import lint

MAX_BYTES: Final = 64 * 2**20
"""Maximum size of a YAML file in bytes. In memory, the file takes about ten times as much."""
MAX_FAULTS: Final = 5
"""Maximum number of faults in an error message."""


def is_yaml(path: Path) -> bool:
    """Return whether the path has the file extension of a graph of causes and remedies."""
    return path.suffix.lower() in (".yaml", ".yml") and not path.is_dir()


def read_graph(path: Path | None) -> Records:
    """Read a graph without linting it. Without a path, read the built-in graph."""
    if path is None:
        return read()
    if not is_yaml(path):
        raise ConfigError(
            f"{path} is not a .yaml file with causes and remedies; convert other formats with `oven-controller kg "
            f"import {path} --to FOLDER`"
        )
    read_file(path, "the graph", MAX_BYTES)  # raises ConfigError if the file is too large
    return read(path)


def load(path: Path | None = None) -> KnowledgeGraph:
    """Load the built-in graph, or the one in `path`. Raises ConfigError with the first faults from the lint."""
    return _load_builtin() if path is None else _check(read_graph(path), str(path))


@cache
def _load_builtin() -> KnowledgeGraph:
    return _check(read_graph(None), "the built-in graph")


def _check(records: Records, name: str) -> KnowledgeGraph:
    if faults := lint(records):
        more = f" and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise ConfigError(
            f"{name} has faults: {'; '.join(faults[:MAX_FAULTS])}{more}; `oven-controller kg lint` lists all"
        )
    return KnowledgeGraph(records)


def load_unchecked(path: Path | None) -> KnowledgeGraph:
    """Load a graph without linting it. Raises ConfigError for an edge from or to a missing node."""
    records = read_graph(path)
    nodes = {node.id for node in records.nodes}
    if bad_edges := [edge for edge in records.edges if not {edge.src, edge.dst} <= nodes]:
        raise ConfigError(f"{path}: edge {bad_edges[0].id} lacks a node; `oven-controller kg lint {path}` lists faults")
    return KnowledgeGraph(records)
