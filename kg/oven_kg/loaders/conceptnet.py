"""Load the assertions of ConceptNet 5.7 (Speer, Chin and Havasi 2017), a table of five columns without a header.

The columns are the URIs of the assertion, its relation, start and end, and JSON with the weight and the sources.
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
from oven_kg.loaders.arrow_columns import to_strings
from oven_kg.loaders.graph_batches import Batch, EdgeBatch, Licence, LoaderOptions, Locate, SkippedRows
from oven_kg.loaders.input_file import GraphFile
from oven_kg.loaders.separated_values import Dialect, read_batches

DIALECT: Final = Dialect("\t", quoted=False, names=("assertion", "relation", "start", "end", "details"))
LICENCE: Final = "CC-BY-SA-4.0"
TAIL_BYTES: Final = 48
"""Number of bytes at the end of the JSON that are searched for the weight first."""
WEIGHT_AT_END: Final = r'[{,]\s*"weight"\s*:\s*(?P<weight>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*\}\s*$'
"""The weight at the end of the JSON, because ConceptNet sorts the keys. The last brace closes the outermost object, and
quotes within strings are escaped, so a match is the object's own weight. JSON without a match is parsed."""


def load_conceptnet(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load assertions. If one language is selected, a node is named by the concept's words, e.g. "apple tree" for
    `/c/en/apple_tree/n`. Otherwise, it is named by the URI without the sense. Raises ConfigError with the line."""
    concept_name = _concept_words if len(options.languages) == 1 else _uri_without_sense
    prefixes = tuple(f"/c/{language}/" for language in options.languages)
    skipped = 0
    yield Licence(LICENCE)
    for batch, locate_line in read_batches(graph_file, DIALECT, DIALECT.names[1:]):
        rows = np.flatnonzero(_has_prefix(batch.column("start"), prefixes) & _has_prefix(batch.column("end"), prefixes))
        skipped += len(batch) - len(rows)
        if not len(rows):
            continue

        def locate(row: int, rows: NDArray[np.intp] = rows, locate_line: Locate = locate_line) -> str:
            return locate_line(int(rows[row]))

        selected = batch.take(pa.array(rows))
        yield EdgeBatch(
            to_strings(graph_file, selected.column("start"), locate, "start", concept_name),
            to_strings(
                graph_file, selected.column("relation"), locate, "relation", lambda uri: uri.removeprefix("/r/")
            ),
            to_strings(graph_file, selected.column("end"), locate, "end", concept_name),
            _parse_weights(graph_file, selected.column("details"), locate),
            locate,
        )
    if skipped:
        yield SkippedRows("assertions in other languages", skipped)


def _has_prefix(concepts: Any, prefixes: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return a mask of the rows that begin with one of the prefixes, or of all rows if there are none."""
    mask = np.full(len(concepts), not prefixes)
    for prefix in prefixes:
        mask |= pc.starts_with(concepts, prefix).to_numpy(zero_copy_only=False)
    return mask


def _concept_words(uri: str) -> str:
    return uri.split("/", 4)[3].replace("_", " ")


def _uri_without_sense(uri: str) -> str:
    return "/".join(uri.split("/", 4)[:4]) if uri.startswith("/c/") else uri


def _parse_weights(graph_file: GraphFile, details: Any, locate: Locate) -> NDArray[np.float64]:
    matches = pc.struct_field(pc.extract_regex(pc.binary_slice(details, -TAIL_BYTES), WEIGHT_AT_END), [0])
    weights: NDArray[np.float64] = matches.cast(pa.string()).cast(pa.float64()).fill_null(np.nan).to_numpy().copy()
    for row in np.flatnonzero(matches.is_null().to_numpy(zero_copy_only=False)).tolist():
        weights[row] = _parse_weight(graph_file, details[row].as_py(), locate(row))
    return weights


def _parse_weight(graph_file: GraphFile, details: bytes, location: str) -> float:
    try:
        value = json.loads(details)["weight"]
    except (ValueError, RecursionError, TypeError, KeyError):
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(
            f"{graph_file.path}, {location}: the last column is not JSON with a number as `weight`; check that the "
            "file is complete and from ConceptNet"
        )
    try:
        return float(value)
    except OverflowError:
        return np.inf
