"""A folder as GraphRAG's indexing writes it: `entities.parquet` and `relationships.parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from oven_core.errors import ConfigError
from oven_kg.loaders.batches import Batch, Column, Edges, LeftOut, Nodes, Options
from oven_kg.loaders.column_names import RELATED
from oven_kg.loaders.source import Input

PREFIXES: Final = ("", "create_final_")
"""Of the files' names: today's, and those before GraphRAG 1.0."""
TITLES: Final = ("title", "name")


def is_folder(path: Path) -> bool:
    return _file(path, "entities").is_file() and _file(path, "relationships").is_file()


def rows(held: Input, options: Options) -> Iterator[Batch]:
    """Entities by their titles, with their types as kinds; relationships have no type there, and are RELATED. Raises
    ConfigError with the file and the row."""
    yield from _entities(Input(_file(held.path, "entities")))
    yield from _relationships(Input(_file(held.path, "relationships")))


def _file(folder: Path, name: str) -> Path:
    return next((path for prefix in PREFIXES if (path := folder / f"{prefix}{name}.parquet").is_file()), folder / name)


def _entities(held: Input) -> Iterator[Batch]:
    from oven_kg.loaders.arrow_columns import texts
    from oven_kg.loaders.parquet import batches, column_names

    names = column_names(held)
    title = next((name for name in TITLES if name in names), None)
    if title is None:
        raise ConfigError(f"{held.path} has no column `title`; GraphRAG's entities have")
    kind = "type" if "type" in names else None
    seen: set[str] = set()
    again = 0
    for batch, where in batches(held, [title, *([kind] if kind else [])], [title]):
        titles = texts(held, batch.column(title), where, "title")
        kinds = [str(value or "") for value in batch.column(kind).to_pylist()] if kind else [""] * len(titles)
        # GraphRAG tells entities of one title apart by their types, and its relationships do not.
        rows = []
        for row, code in enumerate(titles.codes.tolist()):
            if titles.texts[code] not in seen:
                seen.add(titles.texts[code])
                rows.append(row)
        again += len(titles) - len(rows)
        named = [titles.texts[titles.codes[row]] for row in rows]
        yield Nodes(named, [kinds[row] for row in rows], lambda n, rows=rows, where=where: where(rows[n]))  # type: ignore[misc]
    if again:
        yield LeftOut("further types of an entity", again)


def _relationships(held: Input) -> Iterator[Batch]:
    from oven_kg.loaders.arrow_columns import numbers, texts
    from oven_kg.loaders.parquet import batches, column_names

    names = column_names(held)
    if not {"source", "target"} <= {*names}:
        raise ConfigError(f"{held.path} has no columns `source` and `target`; GraphRAG's relationships have")
    weight = ["weight"] if "weight" in names else []
    for batch, where in batches(held, ["source", "target", *weight], ["source", "target"]):
        yield Edges(
            texts(held, batch.column("source"), where, "source"),
            Column([RELATED], np.zeros(len(batch), np.int32)),
            texts(held, batch.column("target"), where, "target"),
            numbers(held, batch.column("weight"), where) if weight else None,
            where,
        )
