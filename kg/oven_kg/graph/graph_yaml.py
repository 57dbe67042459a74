"""Reads nodes, edges and sources from YAML files, without checking their content. `lint` checks it."""

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
    "metrics": "metric", "symptoms": "symptom", "causes": "cause", "remedies": "remedy",
    "preconditions": "precondition",
}  # fmt: skip
DATA: Final = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Node:
    """A metric, symptom, cause, remedy or precondition."""

    id: str
    kind: str
    """A value of `Kind`. The lint reports any other value."""
    text: str = ""
    phase: tuple[str, ...] = ()
    """Training phases to which the node applies: pretrain, sft, grpo. If empty, it applies to all."""
    prior: float = 0.0
    """Probability of a cause when no symptom is known."""
    changes: tuple[str, ...] = ()
    """Changes that the controller makes together as a remedy, e.g. "optimizer.lr_scale:down"."""
    advisory: bool = False
    """Whether only a person can apply the remedy."""

    def applies(self, phase: str) -> bool:
        """Return whether the node applies to a phase. The empty phase stands for any."""
        return not phase or not self.phase or phase in self.phase


@dataclass(frozen=True, slots=True)
class Edge:
    """A relation between two nodes, with its evidence."""

    id: str
    src: str
    relation: str
    dst: str
    strength: float
    grade: str
    source: str
    at: str = ""
    """Position in the source."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A paper, document or measurement that edges cite."""

    id: str
    title: str
    year: int
    authors: str = ""
    arxiv: str = ""
    doi: str = ""
    path: str = ""
    own: bool = False
    """Whether the source is this project's own measurement or decision."""
    checked: str = ""
    """How the source was verified: read, quoted or abstract."""
    how: str = ""
    """How the source was obtained, in words."""


@dataclass(frozen=True, slots=True)
class Records:
    """The content of a graph in file order, including duplicates."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    sources: tuple[Source, ...] = ()
    unreadable: tuple[str, ...] = ()
    """One sentence for each part of the file that could not be read."""


def read(path: Path | None = None) -> Records:
    """Read the built-in graph, or the one in `path`, which has the same format and whose `sources` extend the built-in
    ones. Raises ConfigError if the file is not YAML."""
    body, builtin_sources = _read_yaml(path or DATA / "graph.yaml"), _read_yaml(DATA / "sources.yaml")
    own_sources = _as_mapping(body.get("sources"))
    unknown_sections = set(body) - {*SECTIONS, "edges", "sources"}
    unreadable = [f"the section {name!r} is unknown" for name in sorted(map(str, unknown_sections))]
    unreadable += [
        f"the source {id_!r} is a built-in one; rename yours" for id_ in builtin_sources if id_ in own_sources
    ]
    nodes = [
        Node(id=str(id_), kind=kind, **_checked_fields(Node, values, f"{section}.{id_}", unreadable))
        for section, kind in SECTIONS.items()
        for id_, values in _as_mapping(body.get(section)).items()
    ]
    edges = [
        _parse_edge(str(relation), _as_mapping(values), f"edges.{relation}[{number}]", unreadable)
        for relation, rows in _as_mapping(body.get("edges")).items()
        for number, values in enumerate(rows if isinstance(rows, list) else ())
    ]
    sources = [
        Source(id=str(id_), **{"title": "", "year": 0, **_checked_fields(Source, values, f"sources.{id_}", unreadable)})
        for id_, values in {**own_sources, **builtin_sources}.items()
    ]
    return Records(tuple(nodes), tuple(edges), tuple(sources), tuple(unreadable))


def _parse_edge(relation: str, values: dict[str, Any], location: str, unreadable: list[str]) -> Edge:
    id_, src, dst = (str(values.pop(key, "")) for key in ("id", "from", "to"))
    edge_fields = {"strength": 0.0, "grade": "", "source": "", **_checked_fields(Edge, values, location, unreadable)}
    return Edge(id=id_, src=src, relation=relation, dst=dst, **edge_fields)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        return _as_mapping(load_yaml(path.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read the graph {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a graph in YAML{place_of(error)}: {problem_of(error)}") from error


def _as_mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "strength": (int, float), "prior": (int, float), "year": int, "advisory": bool, "own": bool, "phase": list,
    "changes": list,
}  # fmt: skip
"""The YAML type of each field that is not a string."""


def _checked_fields(
    record: type[Node | Edge | Source], values: object, location: str, unreadable: list[str]
) -> dict[str, Any]:
    """Return the values of the record's fields, and report unknown fields and wrong types in `unreadable`."""
    names = {field.name for field in fields(record)} - {"id", "kind", "src", "dst", "relation"}
    valid_fields: dict[str, Any] = {}
    for name, value in _as_mapping(values).items():
        expected = _TYPES.get(str(name), str)
        if name not in names:
            unreadable.append(f"{location} has the unknown field {name!r}")
        elif not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            unreadable.append(f"{location}.{name} is {value!r}, which has the wrong type")
        else:
            valid_fields[name] = tuple(map(str, value)) if isinstance(value, list) else value
    return valid_fields
