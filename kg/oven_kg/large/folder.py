"""A graph as a folder: one .npy file per array, which are mapped into memory, and `graph.json` with counts and hashes.

The folder is written beside its place and renamed whole. Opening it reads every byte once, in pieces: the contents are
hashed, and whatever numbers another array is checked, so that a folder that was cut off, changed or made by something
else is refused, and no later access leaves an array. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_kg.large.arrays import COLUMNS, EDGES, NODES, RELATIONS, Arrays, column_sha, content_sha, size

FORMAT: Final = "oven-graph-1"
INDEX: Final = "graph.json"
INDEX_BYTES: Final = 2**25
"""Of graph.json: 32,767 relations with names of 1,000 characters would have 33 MB."""
PIECE: Final = 2**20
"""Bytes of an array that are checked at a time."""
AGAIN: Final = "write it again with `oven-controller kg import`"


def check_new(folder: Path) -> None:
    """Raises ConfigError unless the folder is not there, or is empty; OSError if that cannot be seen."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; name a new folder, or remove it first")


def write(folder: Path, arrays: Arrays) -> None:
    """Write the folder, which must not be there, or be empty. Raises ConfigError, and leaves nothing, if it cannot."""
    index = _index(arrays)
    needed = sum(getattr(arrays, name).nbytes + PIECE for name in COLUMNS)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        check_new(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder.parent).free) < needed:
            raise ConfigError(f"{folder} needs {needed:,} bytes and {free:,} are free there; name a folder elsewhere")
        shutil.rmtree(partial, ignore_errors=True)  # of a process of the same number that was killed
        partial.mkdir()
        for name in COLUMNS:
            with (partial / f"{name}.npy").open("wb") as file:
                held = getattr(arrays, name)
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(held))
                file.write(held.data.cast("B") if len(held) else b"")  # numpy's own write forgets why it failed
                _synced(file)
        with (partial / INDEX).open("wb") as file:
            file.write(json.dumps(index, indent=1).encode())
            _synced(file)
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write the graph {folder}: {reason(error)}; nothing was left there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _index(arrays: Arrays) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "graph": arrays.sha,
        "nodes": arrays.nodes,
        "edges": arrays.edges,
        "name_bytes": len(arrays.name_bytes),
        "licence": arrays.licence,
        "relations": list(arrays.relations),
        "kinds": list(arrays.kind_names),
        "columns": {name: column_sha(getattr(arrays, name)) for name in COLUMNS},
    }


def is_folder(path: Path) -> bool:
    """Whether `path` looks like a graph's folder, sound or not."""
    return (path / INDEX).is_file()


def open_folder(path: Path) -> Arrays:
    """The graph in a folder, mapped into memory. Raises ConfigError for one that is not sound."""
    index = _read_index(path)
    hashes, columns = {}, {}
    for name in COLUMNS:
        file = path / f"{name}.npy"
        try:
            columns[name], hashes[name] = _column(file, name, index)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}; {AGAIN}") from error
        if hashes[name] != index["columns"][name]:
            raise ConfigError(
                f"{file} is not what was written there: its hash differs from the one in {INDEX}; {AGAIN}"
            )
    relations, kinds = tuple(index["relations"]), tuple(index["kinds"])
    if content_sha(hashes, relations, kinds, index["licence"]) != index["graph"]:
        raise ConfigError(f"{path / INDEX} is not what was written there: its hash differs; {AGAIN}")
    starts, texts = columns["name_offsets"][:-1], columns["name_bytes"]
    if len(texts) and (texts[np.minimum(starts, len(texts) - 1)] & 0xC0 == 0x80).any():
        raise ConfigError(f"{path / 'name_bytes.npy'} holds a name that is not UTF-8; {AGAIN}")
    return Arrays(
        nodes=index["nodes"],
        relations=relations,
        kind_names=kinds,
        licence=index["licence"],
        sha=index["graph"],
        **columns,
    )


def _read_index(path: Path) -> dict[str, Any]:
    if not is_folder(path):
        raise ConfigError(
            f"{path} is not a graph's folder, with a {INDEX}; give one that `oven-controller kg import` wrote"
        )
    text = read_file(path / INDEX, "the graph's index", INDEX_BYTES)
    try:
        index = json.loads(text)
        sound = index["format"] == FORMAT and _sound(index)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ConfigError(f"{path / INDEX} is not the index of a graph: {reason(error)[:200]}; {AGAIN}") from error
    if not sound:
        raise ConfigError(f"{path / INDEX} is not the index of a graph in the format {FORMAT}; {AGAIN}")
    return dict(index)


def _sound(index: dict[str, Any]) -> bool:
    counts = {"nodes": NODES, "edges": EDGES, "name_bytes": 2**40}
    return (
        all(type(index[name]) is int and 0 <= index[name] <= most for name, most in counts.items())
        and all(isinstance(index[name], str) for name in ("graph", "licence"))
        and all(_texts(index[name]) for name in ("relations", "kinds"))
        and index["columns"].keys() == COLUMNS.keys()
    )


def _texts(values: Any) -> bool:
    return isinstance(values, list) and len(values) <= RELATIONS and all(isinstance(text, str) for text in values)


def _column(path: Path, name: str, index: dict[str, Any]) -> tuple[NDArray[Any], str]:
    """An array mapped from its file, and the hash of its content. Raises ConfigError and OSError."""
    wanted, count = np.dtype(COLUMNS[name][0]), size(name, index["nodes"], index["edges"], index["name_bytes"])
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is not a regular file; {AGAIN}")
    with path.open("rb") as file:
        at = _header(path, file, wanted, count)
        digest, check = hashlib.sha256(), _Check(path, name, index)
        while piece := file.read(PIECE):
            digest.update(piece)
            check(np.frombuffer(piece, wanted))
        check.end()
    held: NDArray[Any] = (
        np.asarray(np.memmap(path, wanted, "r", at, (count,))) if count else np.empty(0, wanted)  # a map is never empty
    )
    return held, digest.hexdigest()


def _header(path: Path, file: BinaryIO, wanted: np.dtype[Any], count: int) -> int:
    """Where the array begins in the file, if the file holds exactly the array that is expected."""
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, fortran, found = np.lib.format.read_array_header_1_0(file)
    except (ValueError, SyntaxError) as error:
        problem = f"{path} is not an array of numpy's; pickles and the like are not read; {AGAIN}"
        raise ConfigError(problem) from error
    if found != wanted or shape != (count,) or (fortran and count > 1):
        dtype = "objects" if found.hasobject else f"{found}"
        raise ConfigError(f"{path} holds {dtype} in the shape {shape}; {wanted} in ({count},) was expected; {AGAIN}")
    at, held = file.tell(), os.fstat(file.fileno()).st_size
    if held != at + count * wanted.itemsize:
        raise ConfigError(
            f"{path} has {held:,} bytes and should have {at + count * wanted.itemsize:,}: it is cut off; {AGAIN}"
        )
    return at


class _Check:
    """Takes an array in pieces, and raises ConfigError for what is out of its range."""

    def __init__(self, path: Path, name: str, index: dict[str, Any]) -> None:
        nodes, edges, relations = index["nodes"], index["edges"], len(index["relations"])
        below = {"dst": nodes, "in_src": nodes, "rel": relations, "in_rel": relations, "in_edge": edges}
        ends = {"indptr": edges, "in_indptr": edges, "name_offsets": index["name_bytes"]}
        self._path, self._last = path, 0
        self._below: int | None = (below | {"kinds": len(index["kinds"])}).get(name)
        self._end: int | None = ends.get(name)
        self._weights = name in ("weight", "in_weight")
        self._begun = False

    def __call__(self, piece: NDArray[Any]) -> None:
        if self._below is not None and (piece.min() < 0 or piece.max() >= self._below):
            wrong = int(piece[(piece < 0) | (piece >= self._below)][0])
            raise ConfigError(f"{self._path} holds {wrong}, which is not from 0 to {self._below - 1}; {AGAIN}")
        if self._weights and not (piece.min() >= 0 and piece.max() < np.inf):
            wrong = piece[~((piece >= 0) & (piece < np.inf))][0]
            raise ConfigError(f"{self._path} holds the weight {wrong}; weights are finite, and 0 or more; {AGAIN}")
        if self._end is not None:
            first = 0 if not self._begun else self._last
            if piece[0] < first or (not self._begun and piece[0] != 0) or (piece[1:] < piece[:-1]).any():
                raise ConfigError(f"{self._path} holds offsets that do not ascend from 0; {AGAIN}")
            self._last, self._begun = int(piece[-1]), True

    def end(self) -> None:
        if self._end is not None and self._last != self._end:
            raise ConfigError(f"{self._path} ends at {self._last}, and not at {self._end}; {AGAIN}")
