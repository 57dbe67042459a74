"""Checks that a file declares each node exactly once and declares both ends of every edge."""

from __future__ import annotations

from oven_core.errors import ConfigError


class DeclaredNodes:
    """The nodes and edges of one file. An edge may precede its nodes. `location` is the file and line for error
    messages."""

    def __init__(self) -> None:
        self._declared: set[str] = set()
        self._awaited: dict[str, str] = {}
        """Undeclared node → location of the first edge that names it."""

    def add_node(self, name: str, location: str) -> None:
        """Raise ConfigError if the node is already declared."""
        if name in self._declared:
            raise ConfigError(f"{location}: the node {name[:60]!r} is declared twice; give each node its own id")
        self._declared.add(name)
        self._awaited.pop(name, None)

    def add_edge(self, source: str, target: str, location: str) -> None:
        for end in (source, target):
            if end not in self._declared:
                self._awaited.setdefault(end, location)

    def finish(self) -> None:
        """Raise ConfigError if an end of an edge was never declared."""
        for name, location in self._awaited.items():
            raise ConfigError(f"{location}: the edge ends at {name[:60]!r}, and no node has that id; add it")
