"""Triples as JSON lines, and CauseNet, which has one causal relation per line (Heindorf et al. 2020)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.batches import Batch, Edge, Options, batched
from oven_kg.loaders.column_names import columns
from oven_kg.loaders.source import Input, lines, utf8

LINE: Final = 4 * 2**20
"""Bytes: CauseNet's longest lines, with all their sources, have some hundred thousand. Parsed, the worst line of this
length takes 90 MB."""


def triples(held: Input, options: Options) -> Iterator[Batch]:
    """One object per line, with subject, predicate, object and perhaps weight. Raises ConfigError with the line."""
    return batched(_triples(held), "line")


def causenet(held: Input, options: Options) -> Iterator[Batch]:
    """Concepts as they are written; CAUSES weighs as many as it has sources. Raises ConfigError with the line."""
    return batched(_causes(held), "line")


def objects(held: Input) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object in each line, with its number. Raises ConfigError."""
    for number, line in lines(held, LINE):
        place = f"line {number}"
        try:
            found = json.loads(utf8(held, place, line.removeprefix(b"\xef\xbb\xbf")))
        except (ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{held.path}, {place} is not JSON: {reason(error)}; is the file cut short? Mend the line"
            ) from error
        if not isinstance(found, dict):
            raise ConfigError(
                f'{held.path}, {place} is not an object; write e.g. {{"subject": …, "predicate": …, "object": …}}'
            )
        yield number, found


def text_of(value: object, place: str, what: str) -> str:
    """A name, which may be written as a whole number. Raises ConfigError."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{place}: the {what} is {_shown(value)}; it has to be a name")


def weight_of(value: object, place: str) -> float:
    """1 if there is none. Raises ConfigError for what is not a number."""
    if value is None or value == "":
        return 1.0
    try:
        if not isinstance(value, bool | list | dict):
            return float(value)  # type: ignore[arg-type]  # whatever it is, it is tried
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{place}: the weight {_shown(value)} is not a number; write one, or none")


def _shown(value: object) -> str:
    return repr(value)[:60]


def _triples(held: Input) -> Iterator[Edge]:
    for number, values in objects(held):
        place = f"{held.path}, line {number}"
        subject, relation, object_, weight = columns(held.path, values)
        yield Edge(
            text_of(values[subject], place, subject),
            text_of(values[relation], place, relation),
            text_of(values[object_], place, object_),
            weight_of(values.get(weight) if weight else None, place),
            number,
        )


def _causes(held: Input) -> Iterator[Edge]:
    for number, values in objects(held):
        place = f"{held.path}, line {number}"
        relation = values.get("causal_relation")
        cause, effect = (_concept(relation, end, place) for end in ("cause", "effect"))
        sources = values.get("sources")
        yield Edge(
            cause, "CAUSES", effect, float(len(sources)) if isinstance(sources, list) and sources else 1.0, number
        )


def _concept(relation: object, end: str, place: str) -> str:
    found = relation.get(end) if isinstance(relation, Mapping) else None
    if not isinstance(found, Mapping) or "concept" not in found:
        raise ConfigError(f"{place}: `causal_relation` has no concept as its {end}; CauseNet's lines have")
    return text_of(found["concept"], place, f"{end}'s concept")
