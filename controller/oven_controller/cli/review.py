"""The `review` command: run all agents on a finished run or on another program's training logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.importing import Knobs, Rename, parse_renames, resumed_text, source_lines
from oven_controller.cli.options import Json, Rules
from oven_controller.importing.declared_knobs import ASSUMED_KNOBS, Knob, parse_knobs
from oven_controller.importing.import_run import suggest_renames
from oven_controller.importing.open_log import open_log
from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import counted
from oven_runs.home.run_folder import IMPORTED
from oven_runs.settings.resolution import rules_from_sets, with_rules


def review(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            autocompletion=completion.runs_or_paths,
            help="A source that `import` reads (a checkpoint or its trainer_state.json, TensorBoard event files, a W&B "
            "offline run, CSV, JSONL, JSON, printed text), a log.jsonl, or the name of a run.",
        ),
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="Ask only this agent, or the agent in this Python file; repeatable.",
            show_default="all installed agents",
            autocompletion=completion.agents_or_files,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report with charts to this file.")
    ] = None,
    overrides: Rules = None,
    rename: Rename = None,
    knob: Knobs = None,
    assume: Annotated[
        bool, typer.Option(help="Announce optimizer.lr_scale, run.rollback and data.skip in an imported run.")
    ] = True,
    as_json: Json = False,
) -> int:
    """Ask all agents what they would have flagged in a finished run, and assess their false alarms.

    Nothing needs to be attached or imported first. The review of an imported run assumes the autonomy level auto for
    all knobs. Use --set rules.autonomy=advise to change that.

    Example: oven-controller review outputs/checkpoint-2000 --html review.html
    """
    from oven_agents.review.review_command import main

    _check_report_file(html)
    rules = rules_from_sets(overrides or ())
    knobs = parse_knobs(knob or [])
    chosen_agents = [name for text in agent or () for name in text.split(",") if name]
    change = _start_change(rules, knobs, assume, chosen_agents or list(plugins.find_plugins("agents")))
    with open_log(source, parse_renames(rename or []), knobs) as log:

        def notes(start: RunStarted) -> list[str]:
            if log.imported:
                return _import_notes(log.imported.summary(knobs))
            return suggest_renames(spec.name for spec in start.metrics)

        return main(log.run, log.events, agents=chosen_agents, change=change, notes=notes, as_json=as_json, html=html)


def _check_report_file(html: Path | None) -> None:
    """Raise ConfigError if the report cannot be written to this file."""
    if html is None:
        return
    if not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {html.absolute().parent}; create it, or choose another")
    if html.is_dir():
        raise ConfigError(f"--html {html} is a folder; name a file in it, e.g. {html / 'review.html'}")


def _start_change(
    rules: dict[str, Any], knobs: Sequence[Knob], assume: bool, agents: Sequence[str]
) -> Callable[[RunStarted], RunStarted]:
    """Return a function that edits a RunStarted: it changes rules, adds knobs and makes all reviewed agents vote."""
    names = {Path(agent).stem for agent in agents}

    def change(start: RunStarted) -> RunStarted:
        is_imported = start.recipe == IMPORTED
        defaults = {"autonomy": "auto"} if is_imported else {}
        new_rules = with_rules(start.rules, defaults | rules)
        if "shadow" not in rules:
            shadow = tuple(name for name in new_rules.shadow if name not in names)
            new_rules = new_rules.model_copy(update={"shadow": shadow})
        new_rules = new_rules.with_grants_for(names)
        metrics = [spec.name for spec in start.metrics]
        specs = {spec.name: spec for spec in start.actuators}
        declared_names = {knob.name for knob in knobs}
        assumed_knobs = [Knob(name) for name in ASSUMED_KNOBS] if is_imported and assume else []
        for knob in [*assumed_knobs, *knobs]:  # a knob of the log is replaced only if the user declared it
            if knob.name not in specs or (knob.name in declared_names and is_imported):
                specs[knob.name] = knob.spec(metrics)
        return start.model_copy(update={"rules": new_rules, "actuators": tuple(specs.values())})

    return change


def _import_notes(summary: dict[str, Any]) -> list[str]:
    """Return notes on an imported source: its format, metrics and skipped rows."""
    resumes = resumed_text(summary["incarnations"])
    metrics = counted(len(summary["metrics"]), "metric")
    return [f"from {summary['source']} ({summary['format']}), {metrics}{resumes}", *source_lines(summary)]
