"""A graph made of files: every batch that a loader yields goes into sorted arrays, and nothing else is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.arrays.builder import Builder, RowError
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.inspection import cycle_text
from oven_kg.arrays.requirement_cycles import find_cycle, without_cycles
from oven_kg.loaders.batches import Batch, Column, Edges, LeftOut, Licence, Nodes, Options
from oven_kg.loaders.relation_map import RelationMap
from oven_kg.loaders.source import Input

Loader: TypeAlias = Callable[[Input, Options], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the files is to be in the graph."""

    relations: RelationMap = field(default_factory=RelationMap)
    least_weight: float = 0.0
    cycles: Literal["refuse", "cut", "keep"] = "refuse"
    """What is done about requirements that go in a circle."""
    licence: str = ""
    """What the graph may be used under; empty for what the files' format says."""


@dataclass(frozen=True, slots=True)
class Imported:
    arrays: GraphArrays
    repeated: int
    """Edges that came again; of their weights the largest counts."""
    left_out: dict[str, int]
    """What has no place in the graph, or was not wanted → how often."""
    unused_relations: tuple[str, ...]
    """Of the map of relations: what no file had."""


def import_graph(files: Sequence[tuple[Input, Loader]], options: Options, wanted: Wanted) -> Imported:
    """Raises ConfigError with file, place and remedy for what is not usable."""
    builder, left_out, licences = Builder(), Counter[str](), dict[str, None]()
    for held, loader in files:
        for batch in loader(held, options):
            if isinstance(batch, LeftOut):
                left_out[batch.what] += batch.count
                continue
            if isinstance(batch, Licence):
                licences[batch.name] = None
                continue
            try:
                _add(builder, batch, wanted, left_out)
            except _Unusable as error:
                raise ConfigError(f"{held.path}, {batch.where(error.row)}: {error}") from error
    arrays = builder.finish(licence=wanted.licence or " AND ".join(licences))
    if not arrays.edges:
        names = ", ".join(str(held.path) for held, _ in files)
        raise ConfigError(f"{names}: no edge is left of {left_out.total() or 'no'} rows; ask for less")
    if wanted.cycles != "keep" and (found := find_cycle(arrays)):
        if wanted.cycles == "refuse":
            raise _circular(files, options, wanted, arrays, found)
        arrays, cut = without_cycles(arrays)
        left_out["requirements on a cycle"] += cut
    return Imported(
        arrays, builder.repeated, {what: count for what, count in left_out.items() if count}, wanted.relations.unused
    )


class _Unusable(ValueError):
    """A row of a batch, and what is wrong with it."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


def _add(builder: Builder, batch: Nodes | Edges, wanted: Wanted, left_out: Counter[str]) -> None:
    if isinstance(batch, Nodes):
        try:
            builder.declare(batch.names, batch.kinds)
        except RowError as error:
            raise _Unusable(error.row, str(error)) from error
        return
    relations, mapped = _mapped(batch.relations, wanted.relations)
    left_out["edges whose relation the map leaves out"] += int((~mapped).sum())
    if batch.weights is not None:
        _check(batch.weights)
    heavy = (1.0 if batch.weights is None else batch.weights) >= np.full(len(mapped), wanted.least_weight)
    left_out["edges below the least weight"] += int((mapped & ~heavy).sum())
    mapped &= heavy
    rows = np.flatnonzero(mapped)
    if not len(rows):
        return
    whole = len(rows) == len(mapped)
    sources, named, targets = (
        column if whole else column.of_rows(rows) for column in (batch.sources, relations, batch.targets)
    )
    weights = None if batch.weights is None else batch.weights[rows]
    try:
        builder.numbered_edges(
            _numbers(sources, builder.node_numbers, rows),
            _numbers(named, builder.relation_numbers, rows),
            _numbers(targets, builder.node_numbers, rows),
            weights,
        )
    except RowError as error:
        raise _Unusable(int(rows[error.row]), str(error)) from error


def _numbers(
    column: Column, numbered: Callable[[Sequence[str]], NDArray[np.int32]], rows: NDArray[np.intp]
) -> NDArray[np.int32]:
    """The builder's numbers of a column's rows, each text looked up once. `rows`: their positions in the batch."""
    try:
        return numbered(column.texts)[column.codes]
    except RowError as error:
        raise _Unusable(int(rows[column.row_of(error.row)]), str(error)) from error


def _mapped(column: Column, relations: RelationMap) -> tuple[Column, NDArray[np.bool_]]:
    """The relations by their names in the graph, and which rows have one."""
    names = [relations.name(text) for text in column.texts]
    kept = np.array([name is not None for name in names], bool)
    mask: NDArray[np.bool_] = kept[column.codes] if len(names) else np.zeros(0, bool)
    return Column([name or "" for name in names], column.codes), mask


def _check(weights: NDArray[np.float64]) -> None:
    usable = (weights >= 0) & (weights <= np.finfo(np.float32).max)  # false for NaN
    if not usable.all():
        row = int(np.argmin(usable))
        raise _Unusable(row, f"the weight {float(weights[row])!r} is not usable; write a number from 0 to 3e38")


def _circular(
    files: Sequence[tuple[Input, Loader]], options: Options, wanted: Wanted, arrays: GraphArrays, nodes: list[int]
) -> ConfigError:
    """The circle, and where its first edge stands: the files are read again for that."""
    names = arrays.names(nodes[:2])
    place = next(_places(files, Options(options.languages), wanted, names[0], names[1]), "")
    return ConfigError(
        f"{place}: REQUIRES goes in a circle, {cycle_text(arrays, nodes)}, so nothing in it could come first; remove "
        "an edge, map the relation to another name with --relations, or leave out all such edges with --cut-cycles"
    )


def _places(
    files: Sequence[tuple[Input, Loader]], options: Options, wanted: Wanted, source: str, target: str
) -> Iterator[str]:
    for held, loader in files:
        for batch in loader(held, options):
            if isinstance(batch, Edges) and source in batch.sources.texts and target in batch.targets.texts:
                relations, _ = _mapped(batch.relations, wanted.relations)
                for row, (one, name, other) in enumerate(
                    zip(
                        batch.sources.codes.tolist(),
                        relations.codes.tolist(),
                        batch.targets.codes.tolist(),
                        strict=True,
                    )
                ):
                    if (batch.sources.texts[one], relations.texts[name], batch.targets.texts[other]) == (
                        source,
                        "REQUIRES",
                        target,
                    ):
                        yield f"{held.path}, {batch.where(row)}"
