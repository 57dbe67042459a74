"""The `kg import` command: convert a graph from other sources to a folder that all `kg` commands read."""

from __future__ import annotations

import json
from pathlib import Path

import click

from oven_controller.cli.kg_large_graphs import NEEDS_EXTRA, read_files, summary_fields, summary_lines
from oven_controller.cli.options import PATH, argument, json_option
from oven_core.errors import ConfigError
from oven_core.terminal_text import say


@click.command()
@argument("files", type=PATH, nargs=-1, required=True, metavar="FILE…", help="The graph's files.")
@click.option("--to", type=PATH, required=True, metavar="FOLDER", help="A new folder for the graph.")
@click.option(
    "--format", "format_", default="", show_default="detected", metavar="NAME", help="The format of all files."
)
@click.option(
    "--relations",
    type=PATH,
    metavar="MAP.yaml",
    help="A map from the files' relations to their names in the graph, or null.",
)
@click.option("--languages", default="", show_default="all", metavar="en,de", help="ConceptNet's languages.")
@click.option(
    "--min-weight", type=click.FloatRange(min=0), default=0.0, metavar="W", help="Skip edges with a smaller weight."
)
@click.option("--cut-cycles", is_flag=True, help="Skip requirements that form cycles instead of rejecting the graph.")
@click.option("--licence", default="", show_default=False, metavar="SPDX", help="The graph's licence.")
@json_option
def import_graph_files(
    files: tuple[Path, ...],
    to: Path,
    format_: str,
    relations: Path | None,
    languages: str,
    min_weight: float,
    cut_cycles: bool,
    licence: str,
    as_json: bool,
) -> int:
    """Convert a graph from other sources to a folder that all `kg` commands read.

    Example: oven-controller kg import conceptnet-assertions-5.7.0.csv.gz --to conceptnet --languages en
    """
    try:
        from oven_kg.arrays import graph_folder
    except ImportError as error:
        raise ConfigError(f"`kg import` {NEEDS_EXTRA}") from error
    graph_folder.check_new(to)
    result = read_files(
        files,
        format_,
        relations=relations,
        languages=languages,
        min_weight=min_weight,
        cycles="cut" if cut_cycles else "refuse",
        licence=licence,
    )
    graph_folder.write(to, result.arrays)
    if as_json:
        fields = {"folder": str(to), **summary_fields(result.arrays)}
        print(json.dumps(fields | {"repeated": result.repeated, "skipped": result.skipped}))
        return 0
    say(f"{result.arrays.nodes:,} nodes and {result.arrays.edges:,} edges in {to}")
    say(*summary_lines(result.arrays))
    if result.repeated:
        say(f"{result.repeated:,} edges were repeated; the largest weight of each was used")
    for kind, count in result.skipped.items():
        say(f"{count:,} {kind} skipped")
    for name in result.unused_relations:
        say(f"{relations} maps the relation {name!r}, but no file has it")
    return 0
