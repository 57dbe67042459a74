"""Triples as .parquet, read with pyarrow, which comes with the extra `learner`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oven_controller.errors import ConfigError
from oven_kg.loaders.rows import EDGES, TEXT, Row, bounded, columns, triple

UNPACKED: Final = 512 * 2**20
"""Bytes of all columns: a small file may hold very many rows of one value."""
BATCH: Final = 10_000


def rows(path: Path) -> Iterator[Row]:
    """Row by row, the columns kept as dictionaries, so that a long text that is repeated is in memory once. What the
    file's own table of contents says is checked before anything is unpacked. Raises ConfigError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(f'reading {path} needs pyarrow: `pip install "oven-controller[learner]"` has it') from error
    bounded(path)
    try:
        held = pq.read_metadata(path)
        unpacked = sum(held.row_group(n).total_byte_size for n in range(held.num_row_groups))
        if held.num_rows > EDGES or unpacked > UNPACKED:
            raise ConfigError(
                f"{path} holds {held.num_rows} rows, {unpacked} bytes unpacked; at most {EDGES} and {UNPACKED} are read"
            )
        names = columns(path, held.schema.to_arrow_schema().names)
        wanted = [name for name in names if name]
        file = pq.ParquetFile(path, read_dictionary=list(names[:3]))
        number = 0
        for batch in file.iter_batches(batch_size=BATCH, columns=wanted):
            _texts(path, batch, names[:3])
            for values in batch.to_pylist():
                number += 1
                yield triple(values, names, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0][:200]}") from error


def _texts(path: Path, batch: Any, names: tuple[str, ...]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in names:
        column = batch.column(name)
        texts = column.dictionary if isinstance(column, pa.DictionaryArray) else column
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            longest = pc.max(pc.utf8_length(texts)).as_py() or 0
            if longest > TEXT:
                raise ConfigError(f"{path} holds a name of {longest} characters; at most {TEXT} are read")
