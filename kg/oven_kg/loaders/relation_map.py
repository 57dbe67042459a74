"""The renaming of a file's relations to the names that they get in the graph."""

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
STANDARD: Final[Mapping[str, str]] = {
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
"""Relations of published graphs that mean the same as one of ours."""


@dataclass
class RelationMap:
    """Maps each relation of a file to its name in the graph: by the user's map, by `STANDARD`, or else its own name in
    upper case with underscores (`HasA` → `HAS_A`). An IRI stays as it is."""

    user_map: Mapping[str, str | None] = field(default_factory=dict)
    """Relation of a file → name, or None to skip its edges."""
    used: set[str] = field(default_factory=set)
    """Keys of `user_map` that a file had."""

    def name(self, relation: str) -> str | None:
        """The relation's name in the graph; None to skip its edges."""
        for key in (relation, _upper_case(relation), OTHERS):
            if key in self.user_map:
                self.used.add(key)
                return self.user_map[key]
        return STANDARD.get(relation) or _upper_case(relation)

    @property
    def unused(self) -> tuple[str, ...]:
        """The relations of the user's map that no file had."""
        return tuple(sorted({*self.user_map} - self.used - {OTHERS}))


def _upper_case(relation: str) -> str:
    if "://" in relation:
        return relation
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", relation.strip())
    return re.sub(r"[\s_-]+", "_", words).upper()


def read_map(path: Path) -> RelationMap:
    """Read a map from a YAML file with one line per relation, e.g. `HasPrerequisite: REQUIRES`. `null` skips a
    relation's edges, and `"*"` stands for all other relations. Raises ConfigError."""
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
                f"{path} maps {relation!r} to {name!r}; write a name, or null to skip the relation's edges"
            )
    return RelationMap(body)
