"""`review`: all agents over one finished run, from a training's own logs or from a run's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.importing import Knobs, Rename, renames, resumed, source_lines
from oven_controller.cli.options import Json

if TYPE_CHECKING:
    from oven_controller.importing.declared_knobs import Knob
    from oven_core.protocol.events import Event
    from oven_core.protocol.messages import RunStarted

    Opened = tuple[str, Callable[[], Iterable[Event]], Callable[[RunStarted], Sequence[str]]]
    """The run's name, its log as often as it is asked for, and what is to be said of the source."""


def review(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            show_default="the run of --run",
            autocompletion=completion.runs_or_paths,
            help="What `import` reads (a checkpoint or its trainer_state.json, TensorBoard event files, a W&B offline "
            "run, CSV, JSONL), a log.jsonl, or the name of a run.",
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="Ask this agent, or this Python file; repeatable.",
            show_default="all that are installed",
            autocompletion=completion.agents_or_files,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report to this file, with charts.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="rules.KEY=VALUE", help="A rule to decide by; repeatable.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            "-r",
            metavar="NAME",
            help="With PATH: keep what was imported as a run of that name. Without: review the run of that name.",
            autocompletion=completion.runs,
        ),
    ] = None,
    rename: Rename = None,
    knob: Knobs = None,
    assume: Annotated[
        bool,
        typer.Option(help="Announce optimizer.lr_scale, run.rollback and data.skip in an imported run."),
    ] = True,
    as_json: Json = False,
) -> int:
    """Ask all agents what they would have flagged in a run that is over, and judge their false alarms.

    Nothing has to be attached or imported before. An imported run is decided on as if all knobs were granted (autonomy
    auto); --set rules.autonomy=advise asks otherwise.

    Example: oven-controller review outputs/checkpoint-2000 --html review.html
    """
    from oven_agents.review.review_command import main
    from oven_controller.importing.declared_knobs import declared
    from oven_core import plugins
    from oven_runs.settings.resolution import rules_set

    _writable(html)
    if source is None:
        source, run = _named(run), None
    rules, knobs = rules_set(sets or ()), declared(knob or [])
    named = [name for said in agent or () for name in said.split(",") if name]
    wanted = named or list(plugins.points("agents"))
    with _opened(source, run, renames(rename or []), knobs) as (name, events, notes):
        return main(
            name,
            events,
            agents=named,
            change=_changed(rules, knobs, assume, wanted),
            notes=notes,
            as_json=as_json,
            html=html,
        )


def _named(run: str | None) -> str:
    """The folder of the run to review, where no path is given. Raises ConfigError and UnknownNameError."""
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    if run is None:
        raise ConfigError("there is nothing to review: give a path or a run, e.g. `oven-controller review RUN`")
    return str(Home().find(run).path)


def _writable(html: Path | None) -> None:
    """Raises ConfigError before the work is done, not after it."""
    from oven_core.errors import ConfigError

    if html is None:
        return
    if not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {html.absolute().parent}; make it, or name another")
    if html.is_dir():
        raise ConfigError(f"--html {html} is a folder; name a file in it, e.g. {html / 'review.html'}")


def _changed(
    rules: dict[str, Any], knobs: Sequence[Knob], assume: bool, agents: Sequence[str]
) -> Callable[[RunStarted], RunStarted]:
    """What a start is replaced by: other rules, more knobs. Agents that were shadows count, since what they would do is
    the question."""
    from oven_controller.importing.declared_knobs import ASSUMED, Knob
    from oven_runs.home.run_folder import IMPORTED
    from oven_runs.settings.resolution import with_rules

    names = {Path(agent).stem for agent in agents}

    def change(start: RunStarted) -> RunStarted:
        imported = start.recipe == IMPORTED
        decided = with_rules(start.rules, ({"autonomy": "auto"} if imported else {}) | rules)
        if "shadow" not in rules:
            decided = decided.model_copy(update={"shadow": tuple(n for n in decided.shadow if n not in names)})
        decided = decided.trusting(names)
        metrics = [spec.name for spec in start.metrics]
        specs = {spec.name: spec for spec in start.actuators}
        asked = {knob.name for knob in knobs}
        for knob in [*(map(Knob, ASSUMED) if imported and assume else ()), *knobs]:
            if knob.name not in specs or (knob.name in asked and imported):
                specs[knob.name] = knob.spec(metrics)
        return start.model_copy(update={"rules": decided, "actuators": tuple(specs.values())})

    return change


@contextlib.contextmanager
def _opened(source: str, run: str | None, renamed: dict[str, str], knobs: Sequence[Knob]) -> Iterator[Opened]:
    """Raises ConfigError, and UnknownNameError where it is neither a path nor a run."""
    from oven_controller.importing.import_run import hints, import_run, read
    from oven_controller.importing.log_source import logged, reader, report_name
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    path, home = Path(source), Home()
    folder = logged(source)
    if folder is not None:
        if renamed or (run and run != folder.run):
            raise ConfigError(f"{source} is a run's own log: --rename and --run are for what `import` reads")
        yield folder.run, reader(folder), lambda start: hints(spec.name for spec in start.metrics)
        return
    if run is not None:
        made = import_run(path, home, run, renamed, knobs)
        yield run, reader(home.find(run)), lambda _: _source(made)
        return
    found = read(path, renamed)
    with found.rows:
        name = report_name(path)
        yield name, lambda: found.rows.events(name, knobs, found.detail), lambda _: _source(found.summary(knobs))


def _source(made: dict[str, Any]) -> list[str]:
    again = f", {resumed(made['incarnations'])}" if made["incarnations"] > 1 else ""
    metrics = f"{len(made['metrics'])} metric{'s' * (len(made['metrics']) != 1)}"
    return [f"from {made['source']} ({made['format']}), {metrics}{again}", *source_lines(made)]
