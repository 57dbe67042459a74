"""`review`: all agents over one finished run, or over another training's logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.importing import Knobs, Rename, renames, resumed, source_lines
from oven_controller.cli.options import Json, Rules, run_option
from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_runs.home.run_folder import IMPORTED, Home
from oven_runs.settings.resolution import rules_set, with_rules

if TYPE_CHECKING:
    from oven_controller.importing.declared_knobs import Knob

    Opened = tuple[str, Callable[[], Iterable[Event]], Callable[[RunStarted], Sequence[str]]]
    """The run's name, a function that reads its log, and a function that returns notes on the source."""


def review(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            show_default="the run of --run",
            autocompletion=completion.runs_or_paths,
            help="A source that `import` reads (a checkpoint or its trainer_state.json, TensorBoard event files, a W&B "
            "offline run, CSV, JSONL), a log.jsonl, or the name of a run.",
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="Ask only this agent, or this Python file; repeatable.",
            show_default="all installed ones",
            autocompletion=completion.agents_or_files,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report with charts to this file.")
    ] = None,
    sets: Rules = None,
    run: Annotated[
        str | None, run_option("With PATH: keep the import as a run with this name. Without PATH: review this run.")
    ] = None,
    rename: Rename = None,
    knob: Knobs = None,
    assume: Annotated[
        bool,
        typer.Option(help="Announce optimizer.lr_scale, run.rollback and data.skip in an imported run."),
    ] = True,
    as_json: Json = False,
) -> int:
    """Ask all agents what they would have flagged in a finished run, and judge their false alarms.

    Nothing has to be attached or imported before. The review of an imported run assumes autonomy auto for all knobs;
    --set rules.autonomy=advise changes that.

    Example: oven-controller review outputs/checkpoint-2000 --html review.html
    """
    from oven_agents.review.review_command import main
    from oven_controller.importing.declared_knobs import declared

    _check_report_file(html)
    if source is None:
        source, run = _run_folder(run), None
    rules, knobs = rules_set(sets or ()), declared(knob or [])
    chosen = [name for names in agent or () for name in names.split(",") if name]
    agents = chosen or list(plugins.points("agents"))
    with _opened(source, run, renames(rename or []), knobs) as (name, events, notes):
        return main(
            name,
            events,
            agents=chosen,
            change=_start_change(rules, knobs, assume, agents),
            notes=notes,
            as_json=as_json,
            html=html,
        )


def _run_folder(run: str | None) -> str:
    """The folder of the run to review if no path is given. Raises ConfigError and UnknownNameError."""
    if run is None:
        raise ConfigError("there is nothing to review: give a path or a run, e.g. `oven-controller review RUN`")
    return str(Home().find(run).path)


def _check_report_file(html: Path | None) -> None:
    """Raises ConfigError if the report cannot be written, before the review instead of after it."""
    if html is None:
        return
    if not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {html.absolute().parent}; make it, or name another")
    if html.is_dir():
        raise ConfigError(f"--html {html} is a folder; name a file in it, e.g. {html / 'review.html'}")


def _start_change(
    rules: dict[str, Any], knobs: Sequence[Knob], assume: bool, agents: Sequence[str]
) -> Callable[[RunStarted], RunStarted]:
    """Return a function that changes a recorded start: other rules, more knobs, and no reviewed agent is a shadow."""
    from oven_controller.importing.declared_knobs import ASSUMED, Knob

    names = {Path(agent).stem for agent in agents}

    def change(start: RunStarted) -> RunStarted:
        imported = start.recipe == IMPORTED
        changed = with_rules(start.rules, ({"autonomy": "auto"} if imported else {}) | rules)
        if "shadow" not in rules:
            changed = changed.model_copy(update={"shadow": tuple(n for n in changed.shadow if n not in names)})
        changed = changed.trusting(names)
        metrics = [spec.name for spec in start.metrics]
        specs = {spec.name: spec for spec in start.actuators}
        declared = {knob.name for knob in knobs}
        for knob in [*(map(Knob, ASSUMED) if imported and assume else ()), *knobs]:
            if knob.name not in specs or (knob.name in declared and imported):
                specs[knob.name] = knob.spec(metrics)
        return start.model_copy(update={"rules": changed, "actuators": tuple(specs.values())})

    return change


@contextlib.contextmanager
def _opened(source: str, run: str | None, renamed: dict[str, str], knobs: Sequence[Knob]) -> Iterator[Opened]:
    """Open a source by its path or its run's name. Raises ConfigError, and UnknownNameError if it is neither."""
    from oven_controller.importing.import_run import hints, import_run, read
    from oven_controller.importing.log_source import logged, reader, report_name

    path, home = Path(source), Home()
    folder = logged(source)
    if folder is not None:
        if renamed or (run and run != folder.run):
            raise ConfigError(f"{source} is a run's own log: --rename and --run are for sources that `import` reads")
        yield folder.run, reader(folder), lambda start: hints(spec.name for spec in start.metrics)
        return
    if run is not None:
        summary = import_run(path, home, run, renamed, knobs)
        yield run, reader(home.find(run)), lambda _: _source_notes(summary)
        return
    recording = read(path, renamed)
    with recording.rows:
        name = report_name(path)
        yield (
            name,
            lambda: recording.rows.events(name, knobs, recording.detail),
            lambda _: _source_notes(recording.summary(knobs)),
        )


def _source_notes(summary: dict[str, Any]) -> list[str]:
    """Notes on an imported source: its format, its metrics, and what was skipped."""
    count, incarnations = len(summary["metrics"]), summary["incarnations"]
    again = f", {resumed(incarnations)}" if incarnations > 1 else ""
    metrics = f"{count} metric{'s' * (count != 1)}"
    return [f"from {summary['source']} ({summary['format']}), {metrics}{again}", *source_lines(summary)]
