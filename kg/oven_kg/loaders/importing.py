"""Builds a graph from files: every batch that a loader yields goes into sorted arrays, and nothing else is kept."""

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
from oven_kg.arrays.requirement_cycles import REQUIRES, find_cycle, without_cycles
from oven_kg.loaders.batches import Batch, Column, Edges, Licence, Nodes, Options, Skipped
from oven_kg.loaders.input_file import Input
from oven_kg.loaders.relation_map import RelationMap

Loader: TypeAlias = Callable[[Input, Options], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of the files becomes the graph."""

    relations: RelationMap = field(default_factory=RelationMap)
    least_weight: float = 0.0
    cycles: Literal["refuse", "cut", "keep"] = "refuse"
    """The treatment of cycles of requirements."""
    licence: str = ""
    """The graph's licence; empty for the one of the files' format."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and the rows that are not in it."""

    arrays: GraphArrays
    repeated: int
    """Repetitions of edges; the largest weight counts."""
    skipped: dict[str, int]
    """Kind of skipped row → their number."""
    unused_relations: tuple[str, ...]
    """Relations of the map that no file had."""


def import_graph(files: Sequence[tuple[Input, Loader]], options: Options, selection: Selection) -> Imported:
    """Build the graph. Raises ConfigError with file, location and remedy for a row that is not usable."""
    builder, skipped, licences = Builder(), Counter[str](), dict[str, None]()
    for graph_file, loader in files:
        for batch in loader(graph_file, options):
            match batch:
                case Skipped():
                    skipped[batch.what] += batch.count
                case Licence():
                    licences[batch.name] = None
                case Nodes() | Edges():
                    try:
                        _add(builder, batch, selection, skipped)
                    except RowError as error:
                        raise ConfigError(f"{graph_file.path}, {batch.locate(error.row)}: {error}") from error
    arrays = builder.finish(licence=selection.licence or " AND ".join(licences))
    if not arrays.edges:
        names = ", ".join(str(graph_file.path) for graph_file, _ in files)
        raise ConfigError(f"{names}: no edge is left of {skipped.total() or 'no'} rows; select more of them")
    if selection.cycles != "keep" and (cycle := find_cycle(arrays)):
        if selection.cycles == "refuse":
            raise _cycle_error(files, options, selection, arrays, cycle)
        arrays, cut = without_cycles(arrays)
        skipped["requirements on a cycle"] += cut
    counts = {what: count for what, count in skipped.items() if count}
    return Imported(arrays, builder.repeated, counts, selection.relations.unused)


def _add(builder: Builder, batch: Nodes | Edges, selection: Selection, skipped: Counter[str]) -> None:
    """Add a batch to the builder. Raises RowError with a row's position in the batch."""
    if isinstance(batch, Nodes):
        builder.declare(batch.names, batch.kinds)
        return
    relations, mapped = _renamed(batch.relations, selection.relations)
    skipped["edges whose relation the map leaves out"] += int((~mapped).sum())
    weights = np.ones(len(mapped)) if batch.weights is None else batch.weights
    _check_weights(weights)
    heavy = weights >= selection.least_weight
    skipped["edges below the least weight"] += int((mapped & ~heavy).sum())
    rows = np.flatnonzero(mapped & heavy)
    if not len(rows):
        return
    columns = (batch.sources, relations, batch.targets)
    if len(rows) < len(mapped):
        sources, relations, targets = (column.select(rows) for column in columns)
    else:
        sources, relations, targets = columns
    try:
        builder.numbered_edges(
            _numbers(sources, builder.node_numbers),
            _numbers(relations, builder.relation_numbers),
            _numbers(targets, builder.node_numbers),
            weights[rows],
        )
    except RowError as error:
        raise RowError(int(rows[error.row]), str(error)) from error


def _numbers(column: Column, number: Callable[[Sequence[str]], NDArray[np.int32]]) -> NDArray[np.int32]:
    """The builder's numbers of a column's rows; each text is looked up once."""
    try:
        return number(column.texts)[column.codes]
    except RowError as error:
        raise RowError(column.row_of(error.row), str(error)) from error


def _renamed(column: Column, relations: RelationMap) -> tuple[Column, NDArray[np.bool_]]:
    """The relations by their names in the graph, and which rows have one."""
    names = [relations.name(text) for text in column.texts]
    has_name = np.array([name is not None for name in names], bool)
    mask: NDArray[np.bool_] = has_name[column.codes] if len(names) else np.zeros(0, bool)
    return Column([name or "" for name in names], column.codes), mask


def _check_weights(weights: NDArray[np.float64]) -> None:
    usable = (weights >= 0) & (weights <= np.finfo(np.float32).max)  # false for NaN
    if not usable.all():
        row = int(np.argmin(usable))
        raise RowError(row, f"the weight {float(weights[row])!r} is not usable; write a number from 0 to 3e38")


def _cycle_error(
    files: Sequence[tuple[Input, Loader]],
    options: Options,
    selection: Selection,
    arrays: GraphArrays,
    cycle: list[int],
) -> ConfigError:
    """The error for a cycle, with the location of its first edge: the files are read again for that."""
    source, target = arrays.names(cycle[:2])
    location = next(_locations(files, options, selection, source, target), "")
    return ConfigError(
        f"{location}: REQUIRES goes in a circle, {cycle_text(arrays, cycle)}, so nothing in it could come first; "
        "remove an edge, map the relation to another name with --relations, or skip all such edges with --cut-cycles"
    )


def _locations(
    files: Sequence[tuple[Input, Loader]], options: Options, selection: Selection, source: str, target: str
) -> Iterator[str]:
    """The locations of the REQUIRES edges from `source` to `target`."""
    for graph_file, loader in files:
        for batch in loader(graph_file, options):
            if not isinstance(batch, Edges) or source not in batch.sources.texts or target not in batch.targets.texts:
                continue
            relations, _ = _renamed(batch.relations, selection.relations)
            matches = [
                np.isin(column.codes, [code for code, name in enumerate(column.texts) if name == text])
                for column, text in ((batch.sources, source), (relations, REQUIRES), (batch.targets, target))
            ]
            for row in np.flatnonzero(np.logical_and.reduce(matches)).tolist():
                yield f"{graph_file.path}, {batch.locate(row)}"
