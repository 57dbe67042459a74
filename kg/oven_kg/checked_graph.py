"""Loading of a graph that passes the lint: the built-in one, a file's, or a randomized control."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_kg.graph.graph_yaml import Records, read
from oven_kg.graph.knowledge import Knowledge
from oven_kg.graph.lint import lint
from oven_kg.graph.randomized_control import shuffled as permuted

YAML: Final = (".yaml", ".yml")


BYTES: Final = 64 * 2**20
"""Of a YAML file; in memory it is some ten times as large."""


def is_yaml(path: Path) -> bool:
    """Whether a path is named as a graph of causes and remedies is, which has grades and sources."""
    return path.suffix.lower() in YAML and not path.is_dir()


def read_graph(path: Path | None) -> Records:
    """The built-in graph if there is no path. Raises ConfigError for what cannot be read, and for a graph of another
    format: it has no remedies to choose from."""
    if path is None:
        return read()
    if not is_yaml(path):
        raise ConfigError(
            f"{path} does not hold causes and remedies, as a .yaml file does; make a graph of another format usable "
            f"with `oven-controller kg import {path} --to FOLDER`"
        )
    read_file(path, "the graph", BYTES)
    return read(path)


def load(path: Path | None = None, *, shuffled: int | None = None) -> Knowledge:
    """The built-in graph, or the one in `path`; with the seed `shuffled` its control. Raises ConfigError with the first
    faults if the lint finds any."""
    if shuffled is not None:
        name = str(path or "the built-in graph")
        return _checked(
            permuted(_checked(read_graph(path), name).records, shuffled), f"{name}, shuffled by {shuffled},"
        )
    return _builtin() if path is None else _checked(read_graph(path), str(path))


@cache
def _builtin() -> Knowledge:
    return _checked(read_graph(None), "the built-in graph")


def _checked(records: Records, name: str) -> Knowledge:
    faults = lint(records)
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ConfigError(f"{name} has faults: {'; '.join(faults[:5])}{more}; `oven-controller kg lint` lists all")
    return Knowledge(records)


def described(path: Path | None) -> Knowledge:
    """A graph that no one will ask for remedies may have faults, but for edges that lead nowhere."""
    records = read_graph(path)
    nodes = {node.id for node in records.nodes}
    if loose := [edge for edge in records.edges if not {edge.src, edge.dst} <= nodes]:
        raise ConfigError(f"edge {loose[0].id} of {path} dangles; `oven-controller kg lint {path}` lists all faults")
    return Knowledge(records)
