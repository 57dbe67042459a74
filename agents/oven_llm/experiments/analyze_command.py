"""`supervise analyze`: runs in one table, those of Supervisor Distillation too."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from oven_core.plugged_command import PluggedCommand
from oven_core.terminal_text import say
from oven_llm.experiments.analysis import analysed, runs_in
from oven_llm.experiments.analysis_table import table


def _analyze(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders that hold such folders.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    rows = [row for path in runs_in(paths) for row in analysed(path)]
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        say(*table(rows))
    return 0


ANALYZE = PluggedCommand(
    "supervise",
    "analyze",
    "Compare runs: accuracy, steps and tokens, F1 of answers and evidence with intervals, US dollars.",
    "logs/qasper",
    _analyze,
)
