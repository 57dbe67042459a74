"""Columns of Arrow as columns of texts and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Column, Where
from oven_kg.loaders.source import Input, not_utf8


def texts(held: Input, column: Any, where: Where, what: str, rewrite: Callable[[str], str] | None = None) -> Column:
    """A column of binary, text or integers, each distinct value decoded once. `rewrite` is done to each. Raises
    ConfigError for what is not UTF-8, null or no name."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    shared = pa.types.is_dictionary(column.type)  # then its dictionary may hold what no row has
    if not shared:
        column = column.dictionary_encode()
    if column.null_count or column.dictionary.null_count:
        row = column.is_null().index(pa.scalar(True)).as_py()
        raise ConfigError(f"{held.path}, {where(max(row, 0))}: the {what} is empty; each has to be a name")
    codes = column.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    values: list[str] = _decoded(held, column.dictionary, lambda code: where(int(np.argmax(codes == code))), what)
    found = Column([rewrite(value) for value in values] if rewrite else values, codes)
    return found.of_rows(np.arange(len(codes))) if shared else found


def _decoded(held: Input, dictionary: Any, where: Where, what: str) -> list[str]:
    kind = dictionary.type
    if pa.types.is_integer(kind):
        return [str(value) for value in dictionary.to_pylist()]
    if not any(is_(kind) for is_ in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_string)):
        raise ConfigError(f"{held.path}: the {what} is a column of {kind}; each has to be a name")
    try:
        found = dictionary.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for code, value in enumerate(dictionary.cast(pa.binary()).to_pylist()):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(held, where(code), value[error.start]) from None
        raise
    values: list[str] = found.to_numpy(zero_copy_only=False).tolist()
    return values


def numbers(held: Input, column: Any, where: Where) -> NDArray[np.float64]:
    """Weights; 1 where there is none. Raises ConfigError for what is not a number."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type):
        column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
        try:
            column = column.cast(pa.string()).cast(pa.float64())
        except pa.ArrowInvalid:
            column = pa.array([_number(held, value, where, row) for row, value in enumerate(column.to_pylist())])
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ConfigError(f"{held.path}: the weight is a column of {column.type}; each has to be a number")
    found: NDArray[np.float64] = column.cast(pa.float64()).fill_null(1.0).to_numpy(zero_copy_only=False)
    return found


def _number(held: Input, value: bytes | None, where: Where, row: int) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        shown = value[:40].decode(errors="replace") if value else ""
        raise ConfigError(f"{held.path}, {where(row)}: the weight {shown!r} is not a number") from None
