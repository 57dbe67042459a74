"""Large graphs on disk: a folder with one memory-mapped .npy file per array, and `graph.json` with counts and hashes.

The folder is written under a temporary name and then renamed. Opening it reads every byte, to check the hashes and the
range of every index into another array. So a folder that is truncated, modified or written by another program is
rejected, and later accesses stay within the arrays. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_kg.arrays.graph_arrays import (
    COLUMNS,
    MAX_EDGES,
    MAX_NODES,
    MAX_RELATIONS,
    GraphArrays,
    column_sha,
    content_sha,
)

FORMAT: Final = "oven-graph-1"
INDEX: Final = "graph.json"
MAX_INDEX_BYTES: Final = 2**25
"""Maximum size of graph.json. It takes 33 MB with 32,767 relation names of 1,000 characters."""
REMEDY: Final = "write it again with `oven-controller kg import`"

Names = Annotated[list[str], Field(max_length=MAX_RELATIONS)]


class _Index(BaseModel):
    """The content of graph.json."""

    model_config = ConfigDict(strict=True)

    format: Literal["oven-graph-1"]
    graph: str
    """SHA-256 of the graph's content."""
    nodes: int = Field(ge=0, le=MAX_NODES)
    edges: int = Field(ge=0, le=MAX_EDGES)
    name_bytes: int = Field(ge=0, le=2**40)
    licence: str
    relations: Names
    kinds: Names
    columns: dict[str, str]
    """SHA-256 of each column."""


def check_new(folder: Path) -> None:
    """Raise ConfigError unless the folder is missing or empty, and OSError if that cannot be determined."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} already exists; choose a new folder, or remove it first")


def write(folder: Path, arrays: GraphArrays) -> None:
    """Write the folder, which must be missing or empty. On failure, raises ConfigError and leaves nothing behind."""
    index = _Index(
        format=FORMAT, graph=arrays.sha, nodes=arrays.nodes, edges=arrays.edges, name_bytes=len(arrays.name_bytes),
        licence=arrays.licence, relations=list(arrays.relations), kinds=list(arrays.kind_names),
        columns={name: column_sha(getattr(arrays, name)) for name in COLUMNS},
    )  # fmt: skip
    needed_bytes = sum(getattr(arrays, name).nbytes + 2**20 for name in COLUMNS)
    partial_folder = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        check_new(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if (free_bytes := shutil.disk_usage(folder.parent).free) < needed_bytes:
            raise ConfigError(f"{folder} needs {needed_bytes:,} bytes, but {free_bytes:,} are free; choose another")
        shutil.rmtree(partial_folder, ignore_errors=True)  # left by a killed process with the same pid
        partial_folder.mkdir()
        for name in COLUMNS:
            with (partial_folder / f"{name}.npy").open("wb") as file:
                values = getattr(arrays, name)
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
                file.write(values.data.cast("B") if len(values) else b"")  # numpy's write loses the cause of an error
                _sync(file)
        with (partial_folder / INDEX).open("wb") as file:
            file.write(json.dumps(index.model_dump(), indent=1).encode())
            _sync(file)
        partial_folder.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write the graph {folder}: {reason(error)}; nothing was written there") from error
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def is_folder(path: Path) -> bool:
    """Return whether `path` looks like a graph folder, valid or not."""
    return (path / INDEX).is_file()


def open_folder(path: Path) -> GraphArrays:
    """Return the graph in a folder, mapped into memory. Raises ConfigError if the folder is not valid."""
    index = _read_index(path)
    hashes, columns = {}, {}
    for name in COLUMNS:
        file = path / f"{name}.npy"
        try:
            columns[name], hashes[name] = _read_column(file, name, index)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}; {REMEDY}") from error
        if hashes[name] != index.columns[name]:
            raise ConfigError(f"{file} was changed: its hash differs from the one in {INDEX}; {REMEDY}")
    if content_sha(hashes, index.relations, index.kinds, index.licence) != index.graph:
        raise ConfigError(f"{path / INDEX} was changed: its hash differs; {REMEDY}")
    name_starts, name_bytes = columns["name_offsets"][:-1], columns["name_bytes"]
    # A continuation byte (0b10xxxxxx) cannot begin a name, because it lies within a character.
    if len(name_bytes) and (name_bytes[np.minimum(name_starts, len(name_bytes) - 1)] & 0xC0 == 0x80).any():
        raise ConfigError(f"{path / 'name_bytes.npy'} contains a name that is not UTF-8; {REMEDY}")
    return GraphArrays(
        nodes=index.nodes, relations=tuple(index.relations), kind_names=tuple(index.kinds), licence=index.licence,
        sha=index.graph, **columns,
    )  # fmt: skip


def _read_index(path: Path) -> _Index:
    if not is_folder(path):
        raise ConfigError(
            f"{path} is not a graph folder, because it has no {INDEX}; use one that `oven-controller kg import` wrote"
        )
    try:
        index = _Index.model_validate_json(read_file(path / INDEX, "the graph's index", MAX_INDEX_BYTES))
    except ValidationError as error:
        raise ConfigError(
            f"{path / INDEX} is not the index of a graph in the format {FORMAT}: {reason(error)}; {REMEDY}"
        ) from error
    if index.columns.keys() != COLUMNS.keys():
        raise ConfigError(f"{path / INDEX} does not list the columns of a graph in the format {FORMAT}; {REMEDY}")
    return index


def _read_column(path: Path, name: str, index: _Index) -> tuple[NDArray[Any], str]:
    """Return an array mapped from its file, and the hash of its content. Raises ConfigError and OSError."""
    dtype_name, length = COLUMNS[name]
    dtype = np.dtype(dtype_name)
    count = {"N": index.nodes, "N+1": index.nodes + 1, "E": index.edges, "B": index.name_bytes}[length]
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is not a regular file; {REMEDY}")
    with path.open("rb") as file:
        offset = _read_header(path, file, dtype, count)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not count:
        return np.empty(0, dtype), digest  # an empty file cannot be mapped
    values = np.asarray(np.memmap(path, dtype, "r", offset, (count,)))
    _check_range(path, name, values, index)
    return values, digest


def _read_header(path: Path, file: BinaryIO, dtype: np.dtype[Any], count: int) -> int:
    """Return the array's position in the file. Raises ConfigError unless the file contains exactly this array."""
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, is_fortran, actual_dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, SyntaxError) as error:
        raise ConfigError(f"{path} is not a .npy file of version 1.0; {REMEDY}") from error
    if actual_dtype != dtype or shape != (count,) or (is_fortran and count > 1):
        actual_name = "objects" if actual_dtype.hasobject else f"{actual_dtype}"
        raise ConfigError(
            f"{path} contains {actual_name} with shape {shape} instead of {dtype} with shape ({count},); {REMEDY}"
        )
    offset, size_bytes = file.tell(), os.fstat(file.fileno()).st_size
    expected_bytes = offset + count * dtype.itemsize
    if size_bytes != expected_bytes:
        raise ConfigError(f"{path} is truncated: {size_bytes:,} of {expected_bytes:,} bytes; {REMEDY}")
    return offset


def _check_range(path: Path, name: str, values: NDArray[Any], index: _Index) -> None:
    """Raise ConfigError if a value is out of range, or if offsets do not ascend from 0 to their end."""
    limits = {"dst": index.nodes, "in_src": index.nodes, "in_edge": index.edges, "kinds": len(index.kinds)}
    limits |= dict.fromkeys(("rel", "in_rel"), len(index.relations))
    last_offsets = {"indptr": index.edges, "in_indptr": index.edges, "name_offsets": index.name_bytes}
    if (limit := limits.get(name)) is not None and (values.min() < 0 or values.max() >= limit):
        value = values[(values < 0) | (values >= limit)][0]
        raise ConfigError(f"{path} contains {value}, which is outside the range 0 to {limit - 1}; {REMEDY}")
    if name in ("weight", "in_weight") and not (values.min() >= 0 and values.max() < np.inf):
        weight = values[~((values >= 0) & (values < np.inf))][0]
        raise ConfigError(f"{path} contains the weight {weight}; weights must be finite and at least 0; {REMEDY}")
    if (last_offset := last_offsets.get(name)) is not None:
        if values[0] != 0 or (values[1:] < values[:-1]).any():
            raise ConfigError(f"{path} contains offsets that do not ascend from 0; {REMEDY}")
        if values[-1] != last_offset:
            raise ConfigError(f"{path} ends at {values[-1]} instead of {last_offset}; {REMEDY}")
