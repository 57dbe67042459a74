"""Names of nodes that a file refers to by ids."""

from __future__ import annotations

from oven_core.errors import ConfigError


class NodeNames:
    """Id → name. A name that two nodes have is followed by the id of the later one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def declare(self, id_: str, name: str, place: str) -> str:
        """The node's name in the graph. `place`: file and line, for the error. Raises ConfigError for an id that was
        declared before."""
        if id_ in self._names:
            raise ConfigError(f"{place}: the id {id_[:60]!r} is a node's already; give each node one id, and one line")
        unique = name if name and name not in self._taken else f"{name} ({id_})" if name else id_
        self._names[id_] = unique
        self._taken.add(unique)
        return unique

    def of(self, id_: str, place: str) -> str:
        """Raises ConfigError for an id that no node had so far."""
        if (name := self._names.get(id_)) is None:
            raise ConfigError(
                f"{place}: the relationship ends at the id {id_[:60]!r}, and no node before it has that; put the nodes "
                "first, and name all files of the graph"
            )
        return name


class Declared:
    """Nodes of a format whose edges may come before their nodes: each is declared once, and all are by the end."""

    def __init__(self) -> None:
        self._declared: set[str] = set()
        self._awaited: dict[str, str] = {}

    def declare(self, name: str, place: str) -> None:
        """Raises ConfigError for a name that was declared before."""
        if name in self._declared:
            raise ConfigError(f"{place}: the node {name[:60]!r} is declared twice; give each node its own id")
        self._declared.add(name)
        self._awaited.pop(name, None)

    def edge(self, source: str, target: str, place: str) -> None:
        for end in (source, target):
            if end not in self._declared:
                self._awaited.setdefault(end, place)

    def end(self) -> None:
        """Raises ConfigError if an edge's end was never declared."""
        for name, place in self._awaited.items():
            raise ConfigError(f"{place}: the edge ends at {name[:60]!r}, and no node has that id; add it")
