"""Nodes, edges and sources as the data files hold them; `lint` checks them, reading does not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml

from oven_core.errors import ConfigError
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

Kind: TypeAlias = Literal["metric", "symptom", "cause", "remedy", "precondition"]
Relation: TypeAlias = Literal["INDICATES", "CAUSES", "SOLVES", "PREVENTS", "WORSENS", "REQUIRES", "CONTRADICTS"]

SECTIONS: Final[dict[str, Kind]] = {
    "metrics": "metric",
    "symptoms": "symptom",
    "causes": "cause",
    "remedies": "remedy",
    "preconditions": "precondition",
}
DATA: Final = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    kind: str
    """One of `Kind`; anything in a graph from elsewhere, which the lint will say."""
    text: str = ""
    phase: tuple[str, ...] = ()
    """Where it applies: pretrain, sft, grpo; empty for all."""
    prior: float = 0.0
    """Of a cause: its share before anything was seen."""
    changes: tuple[str, ...] = ()
    """Of a remedy: what the controller can do for it, all together, e.g. "optimizer.lr_scale:down"."""
    advisory: bool = False
    """Of a remedy: a person's to do."""

    def applies(self, phase: str) -> bool:
        return not phase or not self.phase or phase in self.phase


@dataclass(frozen=True, slots=True)
class Edge:
    id: str
    src: str
    relation: str
    dst: str
    strength: float
    grade: str
    source: str
    at: str = ""
    """The place in the source."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    id: str
    title: str
    year: int
    authors: str = ""
    arxiv: str = ""
    doi: str = ""
    path: str = ""
    own: bool = False
    """Measured or decided in this project."""
    checked: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class Records:
    """All that a graph is made of, in the files' order, duplicates included."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    sources: tuple[Source, ...] = ()
    odd: tuple[str, ...] = ()
    """What could not be read as any of these, each in a sentence."""


def read(path: Path | None = None) -> Records:
    """The built-in graph, or the one in `path`: the same YAML, whose own `sources` stand beside the built-in ones.

    Raises ConfigError when the file cannot be read as YAML at all.
    """
    body, known = _yaml(path or DATA / "graph.yaml"), _yaml(DATA / "sources.yaml")
    added = _mapping(body.get("sources"))
    odd = [f"there is no section {name!r}" for name in sorted(map(str, {*body} - {*SECTIONS, "edges", "sources"}))]
    odd += [f"the source {id_!r} is a built-in one; call yours otherwise" for id_ in known if id_ in added]
    nodes = [
        Node(id=str(id_), kind=kind, **_fields(Node, values, f"{section}.{id_}", odd))
        for section, kind in SECTIONS.items()
        for id_, values in _mapping(body.get(section)).items()
    ]
    edges = [
        _edge(str(relation), _mapping(values), f"edges.{relation}[{number}]", odd)
        for relation, rows in _mapping(body.get("edges")).items()
        for number, values in enumerate(rows if isinstance(rows, list) else ())
    ]
    sources = [
        Source(id=str(id_), **{"title": "", "year": 0, **_fields(Source, values, f"sources.{id_}", odd)})
        for id_, values in {**added, **known}.items()
    ]
    return Records(tuple(nodes), tuple(edges), tuple(sources), tuple(odd))


def _edge(relation: str, values: dict[str, Any], where: str, odd: list[str]) -> Edge:
    id_, src, dst = (str(values.pop(key, "")) for key in ("id", "from", "to"))
    rest = {"strength": 0.0, "grade": "", "source": "", **_fields(Edge, values, where, odd)}
    return Edge(id=id_, src=src, relation=relation, dst=dst, **rest)


def _yaml(path: Path) -> dict[str, Any]:
    try:
        return _mapping(load_yaml(path.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read the graph {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a graph in YAML{place_of(error)}: {problem_of(error)}") from error


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "strength": (int, float),
    "prior": (int, float),
    "year": int,
    "advisory": bool,
    "own": bool,
    "phase": list,
    "changes": list,
}


def _fields(of: type, values: object, where: str, odd: list[str]) -> dict[str, Any]:
    """The fields that `of` knows, each of its type; the rest is said in `odd`."""
    known = {field.name for field in fields(of)} - {"id", "kind", "src", "dst", "relation"}
    found: dict[str, Any] = {}
    for name, value in _mapping(values).items():
        wanted = _TYPES.get(str(name), str)
        if name not in known:
            odd.append(f"{where} has a field {name!r} that nothing reads")
        elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            odd.append(f"{where}.{name} is {value!r}, which is of the wrong type")
        else:
            found[name] = tuple(map(str, value)) if isinstance(value, list) else value
    return found
