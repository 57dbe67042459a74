"""Convert Arrow columns into columns of strings and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.loaders.graph_batches import Column, EdgeBatch, Locate
from oven_kg.loaders.input_file import GraphFile, utf8_error
from oven_kg.loaders.triples import TripleColumns


def to_edge_batch(graph_file: GraphFile, batch: Any, columns: TripleColumns, locate: Locate) -> EdgeBatch:
    """Convert the columns of an Arrow batch of triples. Raises ConfigError with the row's location."""
    subjects, relations, objects = (
        to_strings(graph_file, batch.column(name), locate, label)
        for name, label in zip(columns[:3], ("subject", "relation", "object"), strict=True)
    )
    weights = to_weights(graph_file, batch.column(columns.weight), locate) if columns.weight else None
    return EdgeBatch(subjects, relations, objects, weights, locate)


def to_strings(
    graph_file: GraphFile, column: Any, locate: Locate, label: str, rewrite: Callable[[str], str] | None = None
) -> Column:
    """Convert a column of bytes, strings or integers. Each distinct value is decoded and rewritten once. `label` is the
    column's name, for errors. Raises ConfigError for nulls, invalid UTF-8 and other types."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    is_dictionary = pa.types.is_dictionary(column.type)  # a dictionary may contain values that no row has
    if not is_dictionary:
        column = column.dictionary_encode()
    if column.null_count or column.dictionary.null_count:
        row = max(column.is_null().index(pa.scalar(True)).as_py(), 0)  # −1 if the null is in the dictionary
        raise ConfigError(f"{graph_file.path}, {locate(row)}: the {label} is empty; write a name")
    codes = column.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    values = _decode(graph_file, column.dictionary, lambda code: locate(int(np.argmax(codes == code))), label)
    string_column = Column([rewrite(value) for value in values] if rewrite else values, codes)
    return string_column.select(np.arange(len(codes))) if is_dictionary else string_column


def _decode(graph_file: GraphFile, dictionary: Any, locate: Locate, label: str) -> list[str]:
    dtype = dictionary.type
    if pa.types.is_integer(dtype):
        return [str(value) for value in dictionary.to_pylist()]
    if not (pa.types.is_binary(dtype) or pa.types.is_string(dtype) or pa.types.is_large_string(dtype)):
        raise ConfigError(f"{graph_file.path}: the {label} is a column of {dtype}; write names")
    try:
        strings = dictionary.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for code, value in enumerate(dictionary.cast(pa.binary()).to_pylist()):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                raise utf8_error(graph_file, locate(code), value[error.start]) from None
        raise
    values: list[str] = strings.to_numpy(zero_copy_only=False).tolist()
    return values


def to_weights(graph_file: GraphFile, column: Any, locate: Locate) -> NDArray[np.float64]:
    """Convert a column of weights. A missing weight is 1. Raises ConfigError for a value that is not a number."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type):
        column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
        try:
            column = column.cast(pa.string()).cast(pa.float64())
        except pa.ArrowInvalid:
            column = pa.array(
                [_parse_number(graph_file, value, locate, row) for row, value in enumerate(column.to_pylist())]
            )
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ConfigError(f"{graph_file.path}: the weight is a column of {column.type}; write numbers")
    weights: NDArray[np.float64] = column.cast(pa.float64()).fill_null(1.0).to_numpy(zero_copy_only=False)
    return weights


def _parse_number(graph_file: GraphFile, value: bytes | None, locate: Locate, row: int) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        text = value[:40].decode(errors="replace") if value else ""
        raise ConfigError(f"{graph_file.path}, {locate(row)}: the weight {text!r} is not a number") from None
