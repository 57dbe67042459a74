"""The check that a file declares each node once, and each end of an edge. An edge may come before its nodes."""

from __future__ import annotations

from oven_core.errors import ConfigError


class DeclaredNodes:
    """Collects the nodes and edges of one file. `location` is the file and line, for the error."""

    def __init__(self) -> None:
        self._declared: set[str] = set()
        self._awaited: dict[str, str] = {}
        """Node that an edge named before its declaration → location of that edge."""

    def add_node(self, name: str, location: str) -> None:
        """Raises ConfigError for a node that is declared already."""
        if name in self._declared:
            raise ConfigError(f"{location}: the node {name[:60]!r} is declared twice; give each node its own id")
        self._declared.add(name)
        self._awaited.pop(name, None)

    def add_edge(self, source: str, target: str, location: str) -> None:
        for end in (source, target):
            if end not in self._declared:
                self._awaited.setdefault(end, location)

    def finish(self) -> None:
        """Raises ConfigError if the end of an edge was never declared."""
        for name, location in self._awaited.items():
            raise ConfigError(f"{location}: the edge ends at {name[:60]!r}, and no node has that id; add it")
