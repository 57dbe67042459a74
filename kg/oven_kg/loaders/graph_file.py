"""Reading of a graph's file in any format: the built-in YAML, or one that a loader is installed for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oven_controller import plugins
from oven_kg.graph.graph_yaml import Records, read
from oven_kg.loaders.triples import WHOLE, bounded, gather

YAML: Final = (".yaml", ".yml")


def read_graph(path: Path | None) -> Records:
    """The built-in graph if there is no path. Raises UnknownNameError for a suffix that no loader is named by, and
    ConfigError for what cannot be read."""
    if path is None:
        return read()
    if path.suffix.lower() in YAML:
        return read(bounded(path, WHOLE))
    load = plugins.load("kg_loaders", "loader for files of the kind", path.suffix.lower().removeprefix("."))
    return gather(path, load(path))
