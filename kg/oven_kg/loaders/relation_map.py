"""Names of relations: those of a file, and what they are called in the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

OTHERS: Final = "*"
"""The key of a map for all relations that it does not name."""
KNOWN: Final[Mapping[str, str]] = {
    # ConceptNet 5
    "HasPrerequisite": "REQUIRES",
    "Antonym": "CONTRADICTS",
    # RDF
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#type": "IS_A",
    "http://www.w3.org/2000/01/rdf-schema#subClassOf": "IS_A",
    "http://www.w3.org/2004/02/skos/core#broader": "IS_A",
    "http://www.w3.org/2002/07/owl#disjointWith": "CONTRADICTS",
    "http://purl.org/dc/terms/requires": "REQUIRES",
}
"""Relations of published graphs that say what one of ours does."""


@dataclass
class RelationMap:
    """The name that each relation of a file gets: by the map that was given, by `KNOWN`, else its own in upper case
    with underscores (`HasA` → `HAS_A`); an IRI stays as it is."""

    given: Mapping[str, str | None] = field(default_factory=dict)
    """Relation of a file → name, or None to leave its edges out."""
    used: set[str] = field(default_factory=set)
    """Keys of `given` that a file had."""

    def name(self, relation: str) -> str | None:
        for key in (relation, _upper(relation), OTHERS):
            if key in self.given:
                self.used.add(key)
                return self.given[key]
        return KNOWN.get(relation) or _upper(relation)

    @property
    def unused(self) -> tuple[str, ...]:
        return tuple(sorted({*self.given} - self.used - {OTHERS}))


def _upper(relation: str) -> str:
    if "://" in relation:
        return relation
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", relation.strip())
    return re.sub(r"[\s_-]+", "_", words).upper()


def read_map(path: Path) -> RelationMap:
    """A map as a YAML file: one line for each relation of the file, e.g. `HasPrerequisite: REQUIRES`; `null` leaves
    its edges out, and `"*"` stands for all others. Raises ConfigError."""
    try:
        body = load_yaml(read_file(path, "the map of relations").decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a map in YAML{place_of(error)}: {problem_of(error)}") from error
    if not isinstance(body, dict):
        raise ConfigError(f"{path} is not a map of relations; write lines like `HasPrerequisite: REQUIRES`")
    for relation, name in body.items():
        if not isinstance(relation, str) or not (name is None or (isinstance(name, str) and name.strip())):
            raise ConfigError(
                f"{path} maps {relation!r} to {name!r}; write a name, or null to leave the relation's edges out"
            )
    return RelationMap(body)
