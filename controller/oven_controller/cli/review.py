"""The `review` command: find what is wrong with a training run, from the logs of any program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from oven_agents.diagnosis.engine import find_findings, read_record, unjudged
from oven_agents.diagnosis.kinds import title_of
from oven_agents.review.findings_page import ReviewedRun, render
from oven_agents.review.page import write_page
from oven_controller.cli import completion
from oven_controller.cli.importing import knob_option, parse_renames, rename_option, resumed_text, source_lines
from oven_controller.cli.options import PATH, argument, json_option, print_result, print_table, rules_option
from oven_controller.cli.review_json import ReviewReport, ReviewReports
from oven_controller.finding_report import finding_lines
from oven_controller.importing.declared_knobs import ASSUMED_KNOBS, Knob, parse_knobs
from oven_controller.importing.import_run import suggest_renames
from oven_controller.importing.open_log import open_log
from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import counted, wrapped
from oven_runs.home.run_folder import IMPORTED
from oven_runs.settings.resolution import rules_from_sets, with_rules


@click.command()
@argument(
    "sources",
    nargs=-1,
    required=True,
    metavar="PATH...",
    shell_complete=completion.runs_or_paths,
    help="Training logs: trainer_state.json or a folder with checkpoints, TensorBoard event files, a W&B offline run, "
    "CSV, JSONL, JSON, printed text; or a log.jsonl, or the name of a run.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["act", "advise"]),
    help="Exit with code 1 if a finding says to act, or (advise) gives any advice.",
)
@click.option("--html", type=PATH, metavar="FILE", help="Also write a page with the curves to this file.")
@rename_option
@click.option(
    "--agent",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.agents_or_files,
    help="Show instead what this agent, or the agent in this Python file, would have flagged, and how much of it was a "
    "false alarm; `all` for all installed agents; repeatable.",
)
@rules_option
@knob_option
@click.option(
    "--assume/--no-assume",
    default=True,
    help="With --agent: announce optimizer.lr_scale, run.rollback and data.skip in foreign logs.",
)
@json_option
def review(
    sources: Sequence[str],
    fail_on: str | None,
    html: Path | None,
    rename: Sequence[str],
    agent: Sequence[str],
    overrides: Sequence[str],
    knob: Sequence[str],
    assume: bool,
    as_json: bool,
) -> int:
    """Find what is wrong with a training run, since which step, and what to change.

    It reads the logs of any trainer as they are. Nothing needs to be attached or imported first.

    act: change something now. advise: consider a change. note: be aware. The confidence (0 to 1) ranks findings and is
    not a probability.

    Exit codes: 1 with --fail-on, 2 if a file cannot be read.

    Example: oven-controller review train.log

    Example: oven-controller review runs/*/metrics.csv --fail-on act
    """
    _check_report_file(html)
    renames = parse_renames(rename)
    if agent:
        if fail_on:
            raise ConfigError("--fail-on judges findings, and --agent shows flags of agents instead; omit one of them")
        return _review_with_agents(sources, agent, html, overrides, renames, knob, assume, as_json)
    if overrides or knob or not assume:
        raise ConfigError("--set, --knob and --no-assume affect agents only; add --agent NAME, or --agent all")
    runs: list[ReviewedRun] = []
    errors: dict[str, str] = {}
    for source in sources:
        try:
            runs.append(_review_source(source, renames))
        except ConfigError as error:
            if len(sources) == 1:
                raise
            errors[source] = str(error)
    if html is not None and runs:
        write_page(html, render(runs))
    if len(sources) == 1:
        print_result(as_json, ReviewReport.of_run(runs[0]), _lines(runs[0]))
    elif as_json:
        print_result(True, ReviewReports.of_runs(runs, errors), ())
    else:
        print_table(("run", "steps", "most important finding", "since step", "other findings"), _rows(runs, errors))
    if errors:
        return ConfigError.exit_code
    severities = {finding.severity for run in runs for finding in run.findings}
    failing = {"act": {"act"}, "advise": {"act", "advise"}, None: set[str]()}[fail_on]
    return int(not severities.isdisjoint(failing))


def _review_source(source: str, renames: dict[str, str]) -> ReviewedRun:
    """Return the run with its findings. Raises ConfigError if the source is unreadable or has no observations."""
    with open_log(source, renames) as log:
        record = read_record(log.events(), log.columns)
        if not record.ticks:
            raise ConfigError(f"{source} has no observations; wait for the run's first steps, or name another run")
        notes = _import_notes(log.imported.summary(())) if log.imported else ()
        return ReviewedRun(source, record, find_findings(record), notes)


def _lines(run: ReviewedRun) -> Iterator[str]:
    record = run.record
    extent = f"{counted(record.observation_count, 'row')}, steps {record.step_range[0]:,} to {record.step_range[1]:,}"
    header, notes = f"{run.name}: {extent}", run.notes
    if notes and notes[0].startswith(same := f"from {run.name} "):
        header, notes = f"{header} {notes[0].removeprefix(same)}", notes[1:]
    for text in (*finding_lines(run.findings, record), header, *notes):
        yield from wrapped(text)


def _rows(runs: Sequence[ReviewedRun], errors: dict[str, str]) -> Iterator[tuple[str, ...]]:
    for run in runs:
        steps = f"{run.record.step_range[1]:,}"
        if all(finding.severity == "note" for finding in run.findings):
            yield run.name, steps, unjudged(run.record) or "nothing", "", str(len(run.findings) or "")
            continue
        first, others = run.findings[0], len(run.findings) - 1
        yield run.name, steps, f"{first.severity}: {title_of(first.kind)}", f"{first.onset_step:,}", str(others or "")
    for source, error in errors.items():
        yield source, "", f"cannot be read: {error}", "", ""


def _review_with_agents(
    sources: Sequence[str],
    agent: Sequence[str],
    html: Path | None,
    overrides: Sequence[str],
    renames: dict[str, str],
    knob: Sequence[str],
    assume: bool,
    as_json: bool,
) -> int:
    from oven_agents.review.review_command import main

    if len(sources) > 1:
        raise ConfigError(f"--agent reviews one run at a time; {len(sources)} were named")
    rules = rules_from_sets(overrides)
    knobs = parse_knobs(knob)
    chosen_agents = [name for text in agent for name in text.split(",") if name and name != "all"]
    change = _start_change(rules, knobs, assume, chosen_agents or list(plugins.find_plugins("agents")))
    with open_log(sources[0], renames, knobs) as log:

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
