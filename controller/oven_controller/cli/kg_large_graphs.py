"""Read and summarise large graphs for the `kg` commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from oven_core.errors import ConfigError

if TYPE_CHECKING:
    from oven_kg.arrays.graph_arrays import GraphArrays
    from oven_kg.loaders.graph_import import ImportResult

NEEDS_EXTRA: Final = 'needs the extra kg: `pip install "oven-controller[kg]"`'
MAX_COUNTS: Final = 12
"""Maximum number of relations, or kinds of nodes, to print with their counts, the most frequent first."""


def read_files(
    files: Sequence[Path],
    format_: str = "",
    *,
    relations: Path | None = None,
    languages: str = "",
    min_weight: float = 0.0,
    cycles: Literal["refuse", "cut", "keep"] = "keep",
    licence: str = "",
) -> ImportResult:
    """Read a graph from files. Raises ConfigError, and UnknownNameError for an unknown format."""
    try:
        from oven_kg.loaders.format_detection import files_with_loaders, has_languages
        from oven_kg.loaders.graph_batches import LoaderOptions
        from oven_kg.loaders.graph_import import RelationMap, import_graph, read_map
    except ImportError as error:
        raise ConfigError(f"reading {files[0]} {NEEDS_EXTRA}") from error
    codes = tuple(code.strip() for code in languages.split(",") if code.strip())
    if invalid := next((code for code in codes if not code.isalpha()), None):
        raise ConfigError(f"--languages {invalid!r} is not a language code; use ConceptNet's codes, e.g. en,de")
    files_and_loaders = files_with_loaders(files, format_)
    if codes and not any(has_languages(loader) for _, loader in files_and_loaders):
        raise ConfigError(f"--languages works only for ConceptNet, and {files[0]} is not a ConceptNet file; omit it")
    return import_graph(
        files_and_loaders,
        LoaderOptions(languages=codes),
        read_map(relations) if relations else RelationMap(),
        min_weight=min_weight,
        cycles=cycles,
        licence=licence,
    )


def load_large_graph(path: Path) -> GraphArrays:
    """Load a folder of `kg import`, or the graph in a file of any format. Raises ConfigError."""
    try:
        from oven_kg.arrays import graph_folder
    except ImportError as error:
        raise ConfigError(f"reading {path} {NEEDS_EXTRA}") from error
    return graph_folder.open_folder(path) if graph_folder.is_folder(path) else read_files([path]).arrays


def summary_fields(arrays: GraphArrays) -> dict[str, object]:
    """Return the graph's summary as JSON fields."""
    from oven_kg.arrays.inspection import summary

    return asdict(summary(arrays))


def summary_lines(arrays: GraphArrays) -> list[str]:
    """Return the graph's summary as text."""
    from oven_kg.arrays.inspection import summary

    graph_summary = summary(arrays)
    return [
        f"graph {graph_summary.graph}",
        _counts_line("nodes", graph_summary.nodes),
        _counts_line("edges", graph_summary.edges),
        f"{'isolated':14}{graph_summary.isolated:>4.0%}",
        f"{'licence':14}{graph_summary.licence or 'unknown; `kg import --licence` records it'}",
    ]


def _counts_line(label: str, counts: dict[str, int]) -> str:
    ranking = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    details = ", ".join(f"{count:,} {name or 'unspecified'}" for name, count in ranking[:MAX_COUNTS])
    more = f", and {len(ranking) - MAX_COUNTS} more" if len(ranking) > MAX_COUNTS else ""
    return f"{label:14}{sum(counts.values()):,}  {details}{more}"
