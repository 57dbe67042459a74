"""Load triples from Parquet. The sizes in the file's footer are checked before anything is decompressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oven_core.errors import ConfigError
from oven_kg.arrays.array_builder import MAX_CHARACTERS
from oven_kg.loaders.arrow_columns import to_edge_batch
from oven_kg.loaders.graph_batches import BATCH_ROWS, Batch, LoaderOptions
from oven_kg.loaders.input_file import GraphFile
from oven_kg.loaders.triples import find_triple_columns

MAX_ROWS: Final = 100_000_000
"""Maximum number of rows: three times as many as in ConceptNet."""
MAX_GROUP_BYTES: Final = 128 * 2**20
"""Maximum decompressed bytes of a row group's used columns, because a page may have to be in memory as a whole. A small
file may decompress to far more than its size."""


def load_parquet(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load Parquet. Raises ConfigError with the row."""
    metadata = _read_metadata(graph_file)
    columns = find_triple_columns(graph_file.path, metadata.schema.to_arrow_schema().names)
    _check_sizes(graph_file, metadata, columns.names)
    text_columns = [columns.subject, columns.relation, columns.object]
    row_count = 0
    try:
        # Strings are read as dictionaries, so that a repeated long string is in memory only once.
        file = pq.ParquetFile(graph_file.path, read_dictionary=text_columns)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns.names, use_threads=False):
            _check_lengths(graph_file, batch, text_columns)

            def locate(row: int, start: int = row_count) -> str:
                return f"row {start + row + 1}"

            yield to_edge_batch(graph_file, batch, columns, locate)
            row_count += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(graph_file, error) from error
    if row_count != metadata.num_rows:
        raise ConfigError(f"{graph_file.path} has {row_count} rows instead of {metadata.num_rows}; write it again")


def _read_metadata(graph_file: GraphFile) -> Any:
    if graph_file.compression:
        raise ConfigError(f"{graph_file.path} is a compressed Parquet file; decompress it first")
    try:
        return pq.read_metadata(graph_file.path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(graph_file, error) from error


def _check_sizes(graph_file: GraphFile, metadata: Any, columns: Sequence[str]) -> None:
    try:
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        largest_group = max((_decompressed_bytes(group, columns) for group in groups), default=0)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(graph_file, error) from error
    if not 0 <= metadata.num_rows <= MAX_ROWS or largest_group > MAX_GROUP_BYTES:
        raise ConfigError(
            f"{graph_file.path} claims {metadata.num_rows:,} rows, and {largest_group:,} bytes in a row group; the "
            f"limits are {MAX_ROWS:,} and {MAX_GROUP_BYTES:,}; import only a part of it, or write smaller groups"
        )


def _decompressed_bytes(group: Any, columns: Sequence[str]) -> int:
    stored_columns = [group.column(number) for number in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in stored_columns if column.path_in_schema in columns)


def _check_lengths(graph_file: GraphFile, batch: Any, text_columns: Sequence[str]) -> None:
    """Refuse long names before they become Python objects."""
    for name in text_columns:
        column = batch.column(name)
        values = column.dictionary if isinstance(column, pa.DictionaryArray) else column
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_binary(values.type):
            max_length = pc.max(pc.binary_length(values)).as_py() or 0
            if max_length > 4 * MAX_CHARACTERS:
                raise ConfigError(
                    f"{graph_file.path} has a name of {max_length:,} bytes; the limit is {MAX_CHARACTERS} characters"
                )


def _unreadable_error(graph_file: GraphFile, error: Exception) -> ConfigError:
    problem = str(error).splitlines()[0][:200]
    return ConfigError(f"{graph_file.path} is not a readable Parquet file: {problem}; check whether it is truncated")
