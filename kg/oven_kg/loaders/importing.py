"""Builds a graph from files: every batch that a loader yields goes into sorted arrays, and nothing else is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.arrays.builder import Builder, RowError, checked_weights
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.inspection import cycle_text, find_cycle, without_cycles
from oven_kg.loaders.batches import Batch, Column, Edges, Licence, Nodes, Options, Skipped
from oven_kg.loaders.input_file import Input
from oven_kg.loaders.relation_map import RelationMap

Loader: TypeAlias = Callable[[Input, Options], Iterator[Batch]]


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


def import_graph(
    files: Sequence[tuple[Input, Loader]],
    options: Options,
    relations: RelationMap,
    *,
    least_weight: float = 0.0,
    cycles: Literal["refuse", "cut", "keep"] = "refuse",
    licence: str = "",
) -> Imported:
    """Build the graph. `cycles`: the treatment of cycles of requirements. `licence`: by default that of the files'
    format. Raises ConfigError with file, location and remedy for a row that is not usable."""
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
                        _add(builder, batch, relations, least_weight, skipped)
                    except RowError as error:
                        raise ConfigError(f"{graph_file.path}, {batch.locate(error.row)}: {error}") from error
    arrays = builder.finish(licence=licence or " AND ".join(licences))
    names = ", ".join(str(graph_file.path) for graph_file, _ in files)
    if not arrays.edges:
        raise ConfigError(f"{names}: no edge is left of {skipped.total() or 'no'} rows; select more of them")
    if cycles != "keep" and (cycle := find_cycle(arrays)):
        if cycles == "refuse":
            raise ConfigError(
                f"{names}: REQUIRES goes in a circle, {cycle_text(arrays, cycle)}, so nothing in it could come first; "
                "remove an edge, map the relation to another name with --relations, or skip them all with --cut-cycles"
            )
        arrays, cut = without_cycles(arrays)
        skipped["requirements on a cycle"] += cut
    counts = {what: count for what, count in skipped.items() if count}
    return Imported(arrays, builder.repeated, counts, relations.unused)


def _add(
    builder: Builder, batch: Nodes | Edges, relation_map: RelationMap, least_weight: float, skipped: Counter[str]
) -> None:
    """Add a batch to the builder. Raises RowError with a row's position in the batch."""
    if isinstance(batch, Nodes):
        builder.declare(batch.names, batch.kinds)
        return
    relations, mapped = _renamed(batch.relations, relation_map)
    skipped["edges whose relation the map leaves out"] += int((~mapped).sum())
    weights = np.ones(len(mapped), np.float32) if batch.weights is None else checked_weights(batch.weights)
    heavy = weights >= least_weight
    skipped["edges below the least weight"] += int((mapped & ~heavy).sum())
    rows = np.flatnonzero(mapped & heavy)
    if not len(rows):
        return
    sources, relations, targets = (
        column if len(rows) == len(mapped) else column.select(rows)
        for column in (batch.sources, relations, batch.targets)
    )
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
        raise RowError(int(np.argmax(column.codes == error.row)), str(error)) from error


def _renamed(column: Column, relations: RelationMap) -> tuple[Column, NDArray[np.bool_]]:
    """The relations by their names in the graph, and which rows have one."""
    names = [relations.name(text) for text in column.texts]
    has_name = np.array([name is not None for name in names], bool)
    mask: NDArray[np.bool_] = has_name[column.codes] if len(names) else np.zeros(0, bool)
    return Column([name or "" for name in names], column.codes), mask
