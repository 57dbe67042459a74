"""Names of columns and keys under which tables hold triples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError

SUBJECTS: Final = ("subject", "source", "from", "head", "src", "s", "start")
RELATIONS: Final = ("predicate", "relation", "rel", "type", "p", "label")
OBJECTS: Final = ("object", "target", "to", "tail", "dst", "o", "end")
WEIGHTS: Final = ("weight", "strength", "w")
RELATED: Final = "RELATED"
"""The relation of an edge that names none."""


def columns(path: Path, names: Iterable[str]) -> tuple[str, str, str, str | None]:
    """The columns of subject, relation, object and weight, by the usual names in any case. Raises ConfigError."""
    known = {name.strip().lower(): name for name in names}
    found = [next((known[name] for name in wanted if name in known), None) for wanted in (SUBJECTS, RELATIONS, OBJECTS)]
    if None in found:
        raise ConfigError(
            f"{path} has the columns {', '.join(list(known)[:12]) or 'none'}; a graph of triples needs subject, "
            "predicate and object (or source, relation, target), and may have weight"
        )
    subject, relation, object_ = (name or "" for name in found)
    return subject, relation, object_, next((known[name] for name in WEIGHTS if name in known), None)
