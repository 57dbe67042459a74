"""Triples as Parquet. What the file's own table of contents says is checked before anything is unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oven_core.errors import ConfigError
from oven_kg.arrays.builder import MAX_CHARACTERS
from oven_kg.loaders.arrow_columns import numbers, texts
from oven_kg.loaders.batches import BATCH, Batch, Edges, Options, Where
from oven_kg.loaders.column_names import columns
from oven_kg.loaders.source import Input

ROWS: Final = 100_000_000
"""Of a file: three times what ConceptNet has."""
GROUP: Final = 128 * 2**20
"""Bytes of a row group's wanted columns, unpacked: a page of it may have to be in memory whole. A small file may hold
very many rows of one value."""


def triples(held: Input, options: Options) -> Iterator[Batch]:
    """Raises ConfigError with the row."""
    subject, relation, object_, weight = columns(held.path, column_names(held))
    names = [subject, relation, object_]
    for batch, where in batches(held, [*names, *([weight] if weight else [])], names):
        yield Edges(
            texts(held, batch.column(subject), where, "subject"),
            texts(held, batch.column(relation), where, "relation"),
            texts(held, batch.column(object_), where, "object"),
            numbers(held, batch.column(weight), where) if weight else None,
            where,
        )


def column_names(held: Input) -> list[str]:
    return list(_contents(held).schema.to_arrow_schema().names)


def batches(held: Input, wanted: Sequence[str], names: Sequence[str]) -> Iterator[tuple[Any, Where]]:
    """Batches of the wanted columns, of which `names` are texts that are kept as dictionaries, so that a long text
    that is repeated is in memory once. Raises ConfigError."""
    claimed = _contents(held, wanted).num_rows
    done = 0
    try:
        file = pq.ParquetFile(held.path, read_dictionary=list(names))
        for batch in file.iter_batches(batch_size=BATCH, columns=list(wanted), use_threads=False):
            _short(held, batch, names)
            first = done
            yield batch, lambda row, first=first: f"row {first + row + 1}"  # type: ignore[misc]
            done += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(held, error) from error
    if done != claimed:
        raise ConfigError(f"{held.path} has {done} rows and claims {claimed}; write it again")


def _contents(held: Input, wanted: Sequence[str] = ()) -> Any:
    """The table of contents, if what it claims is within the bounds."""
    if held.packed:
        raise ConfigError(f"{held.path} is Parquet that was packed once more; unpack it")
    try:
        contents = pq.read_metadata(held.path)
        largest = max((_unpacked(contents.row_group(n), wanted) for n in range(contents.num_row_groups)), default=0)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(held, error) from error
    if not 0 <= contents.num_rows <= ROWS or largest > GROUP:
        raise ConfigError(
            f"{held.path} claims {contents.num_rows:,} rows, and {largest:,} bytes in a row group; at most "
            f"{ROWS:,} and {GROUP:,} are read, so give a part of it, or write it with smaller groups"
        )
    return contents


def _unpacked(group: Any, wanted: Sequence[str]) -> int:
    columns = [group.column(n) for n in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema in wanted)


def _unreadable(held: Input, error: Exception) -> ConfigError:
    return ConfigError(
        f"{held.path} is not a readable Parquet file: {str(error).splitlines()[0][:200]}; is it cut short?"
    )


def _short(held: Input, batch: Any, names: Sequence[str]) -> None:
    """Long names are refused before they become Python's."""
    for name in names:
        column = batch.column(name)
        values = column.dictionary if isinstance(column, pa.DictionaryArray) else column
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_binary(values.type):
            longest = pc.max(pc.binary_length(values)).as_py() or 0
            if longest > 4 * MAX_CHARACTERS:
                raise ConfigError(
                    f"{held.path} holds a name of {longest:,} bytes; at most {MAX_CHARACTERS} characters are read"
                )
