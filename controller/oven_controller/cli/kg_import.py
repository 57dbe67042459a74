"""The command `kg import`: a graph of other people as a folder that every question can be asked of."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from oven_controller.cli.options import Json
from oven_core.errors import ConfigError
from oven_core.terminal_text import say

if TYPE_CHECKING:
    from oven_kg.arrays.graph_arrays import GraphArrays
    from oven_kg.loaders.importing import Imported

NEEDS: Final = 'needs the extra kg: `pip install "oven-controller[kg]"` has it'
SHOWN: Final = 12
"""Relations or kinds that are printed; of more, the most frequent."""


def import_graph_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="the graph's files")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="where the graph goes; a new folder")],
    format_: Annotated[str, typer.Option("--format", metavar="NAME", help="of all files [default: told]")] = "",
    relations: Annotated[
        Path | None, typer.Option(metavar="MAP.yaml", help="the files' relations: their names in the graph, or null")
    ] = None,
    languages: Annotated[str, typer.Option(metavar="en,de", help="of ConceptNet's concepts [default: all]")] = "",
    least_weight: Annotated[float, typer.Option(min=0, metavar="W", help="leave out edges that weigh less")] = 0.0,
    cut_cycles: Annotated[
        bool, typer.Option("--cut-cycles", help="leave out requirements that go in a circle, instead of refusing")
    ] = False,
    licence: Annotated[str, typer.Option(metavar="SPDX", help="what the graph may be used under")] = "",
    as_json: Json = False,
) -> int:
    """Convert a graph from other sources to a folder that all `kg` commands read.

    Example: oven-controller kg import conceptnet-assertions-5.7.0.csv.gz --to conceptnet --languages en
    """
    try:
        from oven_kg.arrays import folder
    except ImportError as error:
        raise ConfigError(f"`kg import` {NEEDS}") from error
    folder.check_new(to)
    found = read_files(
        files,
        format_,
        relations=relations,
        languages=languages,
        least_weight=least_weight,
        cycles="cut" if cut_cycles else "refuse",
        licence=licence,
    )
    folder.write(to, found.arrays)
    if as_json:
        about = about_graph(found.arrays)
        print(json.dumps({"folder": str(to), **about, "repeated": found.repeated, "left_out": found.skipped}))
        return 0
    say(f"{found.arrays.nodes:,} nodes and {found.arrays.edges:,} edges in {to}")
    say(*lines(found.arrays))
    if found.repeated:
        say(f"{found.repeated:,} edges came again; the largest weight counts")
    for what, count in found.skipped.items():
        say(f"{count:,} {what} left out")
    for name in found.unused_relations:
        say(f"no file has the relation {name!r}, which {relations} names")
    return 0


def read_files(
    files: list[Path],
    format_: str = "",
    *,
    relations: Path | None = None,
    languages: str = "",
    least_weight: float = 0.0,
    cycles: Literal["refuse", "cut", "keep"] = "keep",
    licence: str = "",
) -> Imported:
    """Raises ConfigError, and UnknownNameError for a format that there is not."""
    try:
        from oven_kg.loaders.batches import Options
        from oven_kg.loaders.formats import has_languages, inputs
        from oven_kg.loaders.importing import Selection, import_graph
        from oven_kg.loaders.relation_map import RelationMap, read_map
    except ImportError as error:
        raise ConfigError(f"reading {files[0]} {NEEDS}") from error
    spoken = tuple(language.strip() for language in languages.split(",") if language.strip())
    if wrong := next((language for language in spoken if not language.isalpha()), None):
        raise ConfigError(f"--languages {wrong!r} is not a language; write codes as ConceptNet has them, e.g. en,de")
    selection = Selection(
        relations=read_map(relations) if relations else RelationMap(),
        least_weight=least_weight,
        cycles=cycles,
        licence=licence,
    )
    read = inputs(files, format_)
    if spoken and not any(has_languages(loader) for _, loader in read):
        raise ConfigError(f"--languages chooses among ConceptNet's, and {files[0]} is not ConceptNet's; leave it out")
    return import_graph(read, Options(languages=spoken), selection)


def large_graph(path: Path) -> GraphArrays:
    """A folder that `kg import` wrote, or the graph in a file of another format. Raises ConfigError."""
    try:
        from oven_kg.arrays import folder
    except ImportError as error:
        raise ConfigError(f"reading {path} {NEEDS}") from error
    return folder.open_folder(path) if folder.is_folder(path) else read_files([path]).arrays


def about_graph(arrays: GraphArrays) -> dict[str, object]:
    """The graph's summary, for scripts."""
    from oven_kg.arrays.inspection import summary

    return asdict(summary(arrays))


def lines(arrays: GraphArrays) -> list[str]:
    """The graph's summary, for people."""
    from oven_kg.arrays.inspection import summary

    held = summary(arrays)
    return [
        f"graph {held.graph}",
        _counted("nodes", held.nodes),
        _counted("edges", held.edges),
        f"{'isolated':14}{held.isolated:>4.0%}",
        f"{'licence':14}{held.licence or 'unsaid; `kg import --licence` records it'}",
    ]


def _counted(what: str, counts: dict[str, int]) -> str:
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{count:,} {name or 'unsaid'}" for name, count in most[:SHOWN])
    more = f", and {len(most) - SHOWN} more" if len(most) > SHOWN else ""
    return f"{what:14}{sum(counts.values()):,}  {shown}{more}"
