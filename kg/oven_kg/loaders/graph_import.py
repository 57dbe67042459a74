"""Builds a graph from files. Each batch from a loader goes directly into sorted arrays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_kg.arrays.array_builder import Builder, RowError, validate_weights
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.inspection import cycle_text, find_cycle, remove_cycles
from oven_kg.loaders.graph_batches import Batch, Column, EdgeBatch, Licence, LoaderOptions, NodeBatch, SkippedRows
from oven_kg.loaders.input_file import GraphFile
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

Loader: TypeAlias = Callable[[GraphFile, LoaderOptions], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An imported graph, with counts of repeated edges and skipped rows."""

    arrays: GraphArrays
    repeated: int
    """Number of repeated edges. Each edge got its largest weight."""
    skipped: dict[str, int]
    """Number of skipped rows per kind."""
    unused_relations: tuple[str, ...]
    """Relations of the user's map that no file contained."""


def import_graph(
    files: Sequence[tuple[GraphFile, Loader]],
    options: LoaderOptions,
    relations: RelationMap,
    *,
    min_weight: float = 0.0,
    cycles: Literal["refuse", "cut", "keep"] = "refuse",
    licence: str = "",
) -> ImportResult:
    """Build the graph. `cycles` decides how to treat cycles of requirements. `licence` defaults to the licence of the
    files' format. Raises ConfigError with file, location and remedy for an unusable row."""
    builder, skipped, licences = Builder(), Counter[str](), dict[str, None]()
    for graph_file, loader in files:
        for batch in loader(graph_file, options):
            match batch:
                case SkippedRows():
                    skipped[batch.description] += batch.count
                case Licence():
                    licences[batch.name] = None
                case NodeBatch() | EdgeBatch():
                    try:
                        _add_batch(builder, batch, relations, min_weight, skipped)
                    except RowError as error:
                        raise ConfigError(f"{graph_file.path}, {batch.locate(error.row)}: {error}") from error
    arrays = builder.finish(licence=licence or " AND ".join(licences))
    names = ", ".join(str(graph_file.path) for graph_file, _ in files)
    if not arrays.edges:
        raise ConfigError(f"{names}: no edges to import ({skipped.total()} rows were skipped); skip fewer rows")
    if cycles != "keep" and (cycle := find_cycle(arrays)):
        if cycles == "refuse":
            raise ConfigError(
                f"{names}: REQUIRES edges form a cycle: {cycle_text(arrays, cycle)}; remove an edge, map the relation "
                "to another name with --relations, or skip the edges on cycles with --cut-cycles"
            )
        arrays, removed_count = remove_cycles(arrays)
        skipped["requirements on a cycle"] += removed_count
    counts = {description: count for description, count in skipped.items() if count}
    return ImportResult(arrays, builder.repeated, counts, relations.unused_relations)


def _add_batch(
    builder: Builder, batch: NodeBatch | EdgeBatch, relation_map: RelationMap, min_weight: float, skipped: Counter[str]
) -> None:
    """Add a batch to the builder. Raises RowError with a row's position in the batch."""
    if isinstance(batch, NodeBatch):
        builder.declare(batch.names, batch.kinds)
        return
    relations, is_mapped = _rename_relations(batch.relations, relation_map)
    skipped["edges whose relation is null in the map"] += int((~is_mapped).sum())
    weights = np.ones(len(is_mapped), np.float32) if batch.weights is None else validate_weights(batch.weights)
    is_heavy = weights >= min_weight
    skipped["edges below the minimum weight"] += int((is_mapped & ~is_heavy).sum())
    rows = np.flatnonzero(is_mapped & is_heavy)
    if not len(rows):
        return
    sources, relations, targets = (
        column if len(rows) == len(is_mapped) else column.select(rows)
        for column in (batch.sources, relations, batch.targets)
    )
    try:
        builder.add_numbered_edges(
            _number_rows(sources, builder.node_numbers),
            _number_rows(relations, builder.relation_numbers),
            _number_rows(targets, builder.node_numbers),
            weights[rows],
        )
    except RowError as error:
        raise RowError(int(rows[error.row]), str(error)) from error


def _number_rows(column: Column, look_up: Callable[[Sequence[str]], NDArray[np.int32]]) -> NDArray[np.int32]:
    """Return the builder's number for each row of a column. Each distinct string is looked up once."""
    try:
        return look_up(column.strings)[column.codes]
    except RowError as error:
        raise RowError(int(np.argmax(column.codes == error.row)), str(error)) from error


def _rename_relations(column: Column, relations: RelationMap) -> tuple[Column, NDArray[np.bool_]]:
    """Return the relations with their names in the graph, and a mask of the rows to import."""
    names = [relations.name(text) for text in column.strings]
    has_name = np.array([name is not None for name in names], bool)
    mask: NDArray[np.bool_] = has_name[column.codes] if len(names) else np.zeros(0, bool)
    return Column([name or "" for name in names], column.codes), mask


WILDCARD: Final = "*"
"""The map's key for all other relations."""
STANDARD_NAMES: Final[Mapping[str, str]] = {
    # ConceptNet 5
    "HasPrerequisite": "REQUIRES",
    "Antonym": "CONTRADICTS",
    # RDF
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#type": "IS_A",
    "http://www.w3.org/2000/01/rdf-schema#subClassOf": "IS_A",
    "http://www.w3.org/2004/02/skos/core#broader": "IS_A",
    "http://www.w3.org/2002/07/owl#disjointWith": "CONTRADICTS",
    "http://purl.org/dc/terms/requires": "REQUIRES",
}
"""Relations of published graphs with the same meaning as one of this project's."""


@dataclass
class RelationMap:
    """A mapping from a file's relations to the graph's. The user's map takes precedence over `STANDARD_NAMES`. Any
    other relation gets its own name in upper case with underscores (`HasA` → `HAS_A`). IRIs do not change."""

    user_map: Mapping[str, str | None] = field(default_factory=dict)
    """The graph's name for each relation of a file, or None to skip its edges."""
    used_keys: set[str] = field(default_factory=set)
    """Keys of `user_map` that appeared in a file."""

    def name(self, relation: str) -> str | None:
        """Return the relation's name in the graph, or None to skip its edges."""
        for key in (relation, _upper_case(relation), WILDCARD):
            if key in self.user_map:
                self.used_keys.add(key)
                return self.user_map[key]
        return STANDARD_NAMES.get(relation) or _upper_case(relation)

    @property
    def unused_relations(self) -> tuple[str, ...]:
        return tuple(sorted({*self.user_map} - self.used_keys - {WILDCARD}))


def _upper_case(relation: str) -> str:
    if "://" in relation:
        return relation
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", relation.strip())
    return re.sub(r"[\s_-]+", "_", words).upper()


def read_map(path: Path) -> RelationMap:
    """Read a map from a YAML file with one line per relation, e.g. `HasPrerequisite: REQUIRES`. `null` skips a
    relation's edges, and `"*"` stands for all other relations. Raises ConfigError."""
    try:
        body = load_yaml(read_file(path, "the map of relations").decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a map in YAML{place_of(error)}: {problem_of(error)}") from error
    if not isinstance(body, dict):
        raise ConfigError(f"{path} is not a map of relations; write lines like `HasPrerequisite: REQUIRES`")
    for relation, name in body.items():
        if not isinstance(relation, str) or not (name is None or (isinstance(name, str) and name.strip())):
            raise ConfigError(
                f"{path} maps {relation!r} to {name!r}; write a name, or null to skip the relation's edges"
            )
    return RelationMap(body)
