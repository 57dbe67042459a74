"""ConceptNet 5.7's assertions, a table of five columns without names (Speer, Chin and Havasi 2017).

The columns are the assertion, its relation, start and end as URIs, and JSON with the weight and the sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.loaders.arrow_columns import texts
from oven_kg.loaders.batches import Batch, Edges, LeftOut, Licence, Options, Where
from oven_kg.loaders.separated_values import Layout, batches
from oven_kg.loaders.source import Input

LAYOUT: Final = Layout("\t", quoted=False, names=("assertion", "relation", "start", "end", "about"))
LICENCE: Final = "CC-BY-SA-4.0"
TAIL: Final = 48
"""Bytes at the end of the JSON in which the weight is looked for."""
WEIGHT_LAST: Final = r'[{,]\s*"weight"\s*:\s*(?P<weight>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*\}\s*$'
"""ConceptNet sorts the keys, so that the weight comes last. The brace that ends the JSON closes the outermost object,
and a quote within a text is escaped, so what this finds is the object's own weight; the rest is parsed."""


def assertions(held: Input, options: Options) -> Iterator[Batch]:
    """Concepts by their words, e.g. "apple tree" for `/c/en/apple_tree/n` where one language is read; where several
    are, as URIs without the sense. Raises ConfigError with the line."""
    concept = _words if len(options.languages) == 1 else _uri
    wanted = tuple(f"/c/{language}/" for language in options.languages)
    left_out = 0
    yield Licence(LICENCE)
    for batch, where in batches(held, LAYOUT, LAYOUT.names[1:]):
        rows = np.flatnonzero(_of(batch.column("start"), wanted) & _of(batch.column("end"), wanted))
        left_out += len(batch) - len(rows)
        if not len(rows):
            continue

        def place(row: int, rows: NDArray[np.intp] = rows, where: Where = where) -> str:
            return where(int(rows[row]))

        taken = pa.array(rows)
        yield Edges(
            texts(held, batch.column("start").take(taken), place, "start", concept),
            texts(held, batch.column("relation").take(taken), place, "relation", _relation),
            texts(held, batch.column("end").take(taken), place, "end", concept),
            _weights(held, batch.column("about").take(taken), place),
            place,
        )
    if left_out:
        yield LeftOut("assertions in other languages", left_out)


def _of(concepts: Any, wanted: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which rows have a concept of these languages; all if there are none."""
    mask = np.full(len(concepts), not wanted)
    for prefix in wanted:
        mask |= pc.starts_with(concepts, prefix).to_numpy(zero_copy_only=False)
    return mask


def _words(uri: str) -> str:
    return uri.split("/", 4)[3].replace("_", " ")


def _uri(uri: str) -> str:
    return "/".join(uri.split("/", 4)[:4]) if uri.startswith("/c/") else uri


def _relation(uri: str) -> str:
    return uri.removeprefix("/r/")


def _weights(held: Input, about: Any, where: Where) -> NDArray[np.float64]:
    found = pc.struct_field(pc.extract_regex(pc.binary_slice(about, -TAIL), WEIGHT_LAST), [0])
    missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))
    weights: NDArray[np.float64] = found.cast(pa.string()).cast(pa.float64()).fill_null(np.nan).to_numpy()
    if len(missing):
        weights = weights.copy()
        for row in missing.tolist():
            weights[row] = _weight(held, about[row].as_py(), where(row))
    return weights


def _weight(held: Input, about: bytes, place: str) -> float:
    try:
        value = json.loads(about)["weight"]
    except (ValueError, RecursionError, TypeError, KeyError):
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(
            f"{held.path}, {place}: the last column is not JSON with a number as `weight`; is the file cut short, or "
            "not ConceptNet's?"
        )
    try:
        return float(value)
    except OverflowError:
        return np.inf
