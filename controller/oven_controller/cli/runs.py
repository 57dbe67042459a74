"""`runs`, `status` and `down`: list, remove, inspect and end runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import typer

from oven_controller.cli import run_removal
from oven_controller.cli.options import HERE, Json, LiveRunName, RunName, SameRun, from_anywhere, one_run
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_runs.access.run_access import RunAccess

DOWN_S = 45.0


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True)
    group.callback()(runs)
    run_removal.register(group)
    app.add_typer(group, name="runs")
    app.command()(from_anywhere(status))
    app.command()(down)


def say_what_is_missing(access: RunAccess) -> None:
    """On stderr, and ends the command with exit code 3, where a run that is down lacks messages of its learner."""
    from oven_runs.access.warning import warn

    if missing := access.missing():
        warn(missing)
        raise typer.Exit(3)


def runs(context: typer.Context, as_json: Json = False) -> None:
    """List the runs in $OVEN_HOME, the newest first; `runs rm` and `runs prune` remove some.

    Example: oven-controller runs --json
    """
    from oven_runs.home.run_folder import Home
    from oven_runs.home.run_listing import listed_runs

    if context.invoked_subcommand is not None:
        return
    home = Home()
    rows = listed_runs(home)
    if as_json:
        print(json.dumps([row.model_dump() for row in rows]))
        return
    if not rows:
        print(f"no runs in {home.path} yet; `oven-controller up` starts one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "status", "recipe", "start", "created", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.run, row.status, row.recipe, row.start, row.created[:16].replace("T", " "))
    Console().print(table)


def status(run: RunName = None, run_: SameRun = None, as_json: Json = False, at: Endpoint = HERE) -> None:
    """Show how a run is doing: its processes and memory, agents, ticks and decisions. It works when the stack is down,
    too.

    Example: oven-controller status --json
    """
    import asyncio

    from oven_controller.stack.run_status import run_status
    from oven_runs.access.run_finder import find_run

    found = asyncio.run(run_status(find_run(one_run(run, run_), at)))
    if as_json:
        print(found.model_dump_json(ensure_ascii=True))
    else:
        _show(found.model_dump())


def _show(found: dict[str, Any]) -> None:
    from oven_core.terminal_text import say
    from oven_runs.home.judge_costs import cost_lines
    from oven_runs.log.run_summary import text

    drill = f", DRILL: {found['drill']}" if found["drill"] else ""
    say(f"run {found['run']}: {found['status']} ({found['recipe']}, start {found['start'] or 'its own'}{drill})")
    for entry in found["processes"]:
        life = f"{entry['memory_mb']:.0f} MB" if entry["alive"] else "not alive"
        say(f"  {entry['name']:<22} pid {entry['pid']:<8} {life}")
    if found["processes"]:
        say(f"  {'together':<22}{'':13}{found['memory_mb']:.0f} MB")
    for note in found["notes"]:
        say(f"! {note}")
    if found["log_unread"]:
        say(f"the log could not be read: {found['log_unread']}")
        return
    say(f"step {found['step']}, tick {found['tick']}, {found['progress']:.0%} done; {found['events']} events")
    shown = [found["target"], *(name for name in found["metrics"] if name.startswith("eval/"))]
    for name in dict.fromkeys(name for name in shown if name):
        say(f"  {name} {found['metrics'][name]:.3f}")
    for name, value in found["knobs"].items():
        if value is not None:
            say(f"  {name} = {text(value)}")
    _show_decisions(found["decisions"], found["prompts"])
    for line in cost_lines(found["judge_costs"]):
        say(line)
    for actuator, level in found["autonomy"].items():
        say(f"autonomy{' of ' + actuator if actuator else ''}: {level}")
    if found["held"]:
        say(f"held: {found['held']}")
    if found["ended_with"]:
        say(f"end: {found['ended_with']}")
    _show_alerts(found["alerts"])
    _show_voices(found)


def _show_voices(found: dict[str, Any]) -> None:
    from oven_core.terminal_text import say
    from oven_runs.home.judge_states import JudgeState

    for name, judge in found["judges"].items():
        say(f"  judge {name}, when it started: {JudgeState.model_validate(judge).words()}")
    for name, agent in found["agents"].items():
        life = "live" if agent["live"] else "not live"
        why = f"; shadow: {agent['shadow']}" if agent["shadow"] else ""
        why += f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        say(f"  agent {name}: {life}, {agent['proposals']} proposals, in {agent['in_adopted']} adopted{why}")


def _show_alerts(alerts: list[dict[str, Any]]) -> None:
    from oven_core.terminal_text import say

    for one in alerts:
        said = f"{one['metric']} {float(one['value']):.3g}, expected bound {float(one['expected']):.3g}"
        say(f"! {one['agent']}: {one['symptom']} since tick {one['tick']} ({said})")


def _show_decisions(decisions: dict[str, Any], prompts: dict[str, int]) -> None:
    from oven_core.terminal_text import say

    say(f"decisions: {decisions['adopted']} adopted, {decisions['rejected']} rejected")
    if prompts["injected"]:
        say(f"  {prompts['injected']} prompts injected, {prompts['evicted']} made room")
    for decision, actuator in decisions["advised"].items():
        left = decisions["lapses"][decision]
        say(f"  advised on {actuator}, lapses in {left}: `oven-controller approve {decision}`")


def down(run: LiveRunName = None, run_: SameRun = None) -> None:
    """Shut a running stack down cleanly, with a checkpoint, and wait for it.

    Example: oven-controller down grpo-1121-0231
    """
    import os
    import signal

    from oven_core.errors import ProcessError
    from oven_runs.home.run_folder import Home

    folder = Home().find(one_run(run, run_), running=True)
    pid = folder.info().pid
    print(f"ending {folder.run} (pid {pid}) in order", flush=True)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended in this moment
    except PermissionError as error:
        raise ProcessError(f"pid {pid} belongs to another user; ask them, or use `oven-controller stop`") from error
    deadline = time.monotonic() + DOWN_S
    while folder.locked():
        if time.monotonic() > deadline:
            raise ProcessError(f"run {folder.run!r} did not end within {DOWN_S:g} s; `kill -9 {pid}` ends all of it")
        time.sleep(0.1)
    print(f"{folder.run} is down ({folder.status()})")
