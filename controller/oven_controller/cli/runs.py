"""`runs`, `status` and `down`: list, remove, inspect and end runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import typer

from oven_controller.cli import run_removal
from oven_controller.cli.options import HERE, Json, LiveRunName, RunName, SameRun, from_anywhere, one_run
from oven_controller.runs.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_controller.log.run_summary import RunSummary
    from oven_controller.runs.folder import RunFolder
    from oven_controller.runs.run_access import RunAccess

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
    from oven_controller.runs.warning import warn

    if missing := access.missing():
        warn(missing)
        raise typer.Exit(3)


def runs(context: typer.Context, as_json: Json = False) -> None:
    """List the runs in $OVEN_HOME, the newest first; `runs rm` and `runs prune` remove some.

    Example: oven-controller runs --json
    """
    from oven_controller.runs.folder import Home

    if context.invoked_subcommand is not None:
        return
    home = Home()
    rows = []
    for folder in home.runs():
        info = folder.info()
        row = {"run": folder.run, "status": folder.status(), "recipe": info.recipe, "start": info.start}
        rows.append(row | {"drill": info.drill, "created": info.created, "url": info.url, "folder": str(folder.path)})
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        print(f"no runs in {home.path} yet; `oven-controller up` starts one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "status", "recipe", "start", "created", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["run"], row["status"], row["recipe"], row["start"], row["created"][:16].replace("T", " "))
    Console().print(table)


def status(run: RunName = None, run_: SameRun = None, as_json: Json = False, at: Endpoint = HERE) -> None:
    """Show how a run is doing: its processes and memory, agents, ticks and decisions. It works when the stack is down,
    too.

    Example: oven-controller status --json
    """
    import asyncio
    from datetime import UTC, datetime

    from oven_controller.errors import OvenError
    from oven_controller.log.run_summary import RunSummary
    from oven_controller.runs.run_finder import find_run
    from oven_controller.stack.health import notes

    access = find_run(one_run(run, run_), at)
    view, unread, missing, told = RunSummary(), "", "", list[str]()

    async def look() -> None:
        async for event in access.events(tell=told.append):
            view.feed(event)

    try:
        asyncio.run(look())
        missing = access.missing()
    except OvenError as error:
        unread = str(error)
    info, beside = access.info(), _beside_the_log(access, view, unread, told)
    state, processes, last_words = beside["status"], beside["processes"], beside.pop("last_words")
    lacking = [missing] if missing else []
    found: dict[str, Any] = {
        "run": access.run,
        "status": state,
        "recipe": info.recipe or (view.started.recipe if view.started else ""),
        "start": info.start,
        "drill": info.drill,
        "url": info.url if state == "running" else "",
        "processes": processes,
        "memory_mb": round(sum(entry["memory_mb"] for entry in processes), 1),
        "tick": view.tick,
        "step": view.step,
        "progress": view.progress,
        "target": view.target(),
        "metrics": view.metrics,
        "knobs": view.knobs,
        "decisions": {
            "adopted": view.adopted,
            "rejected": view.rejected,
            "withheld": view.withheld,
            "trying": {d.id: d.actuator for d in view.trying.values()},
            "not_kept": view.not_kept,
            "advised": {d.id: d.actuator for d in view.advised.values() if not view.lapsed(d)},
        },
        "trials": {
            "completed": view.trials.completed,
            "kept": view.trials.kept,
            "interrupted": view.trials.interrupted,
            "refused": view.trials.refused,
            "steps_thrown_away": view.trials.extra,
            "under_way": view.trials.open.progress if view.trials.open else "",
            "summary": view.trials.counts(view.tick),
        },
        "outcomes": view.outcomes,
        "prompts": {"injected": view.injected, "evicted": view.evicted},
        "judge_costs": beside["judge_costs"],
        "held": view.held if state == "running" else "",
        "ended_with": view.ended_with,
        "autonomy": _autonomy(view),
        "receipts": view.receipts,
        "agents": {
            name: {"live": agent.live and state == "running", "cannot_fire": agent.cannot_fire, "shadow": agent.shadow}
            | {
                "newcomer": agent.newcomer,
                "proposals": agent.proposals,
                "against": agent.against,
                "in_adopted": agent.backed,
            }
            for name, agent in sorted(view.agents.items())
        },
        "judges": beside["judges"],
        "events": view.seq,
        "log_unread": unread,
        "missing": missing,
        "notes": [*told, *lacking, *notes(view, processes, unread, datetime.now(UTC), last_words)],
    }
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)


def _beside_the_log(access: RunAccess, view: RunSummary, unread: str, told: list[str]) -> dict[str, Any]:
    """What the run's folder says; of a run on another machine the log has to do. `told` hears what cannot be read."""
    from oven_controller.errors import OvenError
    from oven_controller.runs import judge_states
    from oven_controller.runs.judge_costs import judge_costs
    from oven_controller.runs.local_run import LocalRun

    if not isinstance(access, LocalRun):
        ended = view.ended.reason if view.ended else "running"
        nothing: dict[str, Any] = {"processes": [], "judge_costs": {}, "judges": {}}
        return nothing | {"status": "unreachable" if unread else ended, "last_words": lambda _: "on its own machine"}
    folder = access.folder
    state = folder.status()
    try:
        costs = judge_costs(folder, view)
    except OvenError as error:
        costs = {}
        told.append(str(error))
    return {
        "status": state,
        "processes": _processes(folder) if state == "running" else [],
        "judge_costs": costs,
        "judges": {name: one.model_dump() for name, one in judge_states.read(folder.path).items()},
        "last_words": folder.last_words,
    }


def _autonomy(view: RunSummary) -> dict[str, str]:
    """What is in force, by actuator; "" for every actuator that is not named."""
    if view.started is None:
        return {}
    rules = {"": view.started.rules.autonomy, **view.started.rules.autonomy_of}
    return {**({} if "" in view.autonomy else rules), **view.autonomy}


def _processes(folder: RunFolder) -> list[dict[str, Any]]:
    """The stack's processes, each with what it started, in MB of resident memory."""
    import psutil

    info = folder.info()
    found = []
    for name, pid in {"up": info.pid, **info.children}.items():
        memory, alive, stopped = 0, False, False
        try:
            process = psutil.Process(pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            below = [] if name == "up" else process.children(recursive=True)
            stopped = psutil.STATUS_STOPPED in [one.status() for one in (process, *below)]
            for one in (process, *below):
                memory += one.memory_info().rss
        except psutil.Error:
            pass
        found.append(
            {"name": name, "pid": pid, "alive": alive, "stopped": stopped, "memory_mb": round(memory / 1e6, 1)}
        )
    return found


def _show(found: dict[str, Any]) -> None:
    from oven_controller.log.run_summary import text
    from oven_controller.runs.judge_costs import cost_lines
    from oven_controller.terminal_text import say

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
    _show_decisions(found["decisions"], found["trials"], found["prompts"])
    for line in cost_lines(found["judge_costs"]):
        say(line)
    for actuator, level in found["autonomy"].items():
        say(f"autonomy{' of ' + actuator if actuator else ''}: {level}")
    if found["held"]:
        say(f"held: {found['held']}")
    if found["ended_with"]:
        say(f"end: {found['ended_with']}")
    _show_voices(found)


def _show_voices(found: dict[str, Any]) -> None:
    from oven_controller.runs.judge_states import JudgeState
    from oven_controller.terminal_text import say

    for name, judge in found["judges"].items():
        say(f"  judge {name}, when it started: {JudgeState.model_validate(judge).words()}")
    for name, agent in found["agents"].items():
        life = "live" if agent["live"] else "not live"
        why = f"; shadow: {agent['shadow']}" if agent["shadow"] else ""
        why += f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        say(f"  agent {name}: {life}, {agent['proposals']} proposals, in {agent['in_adopted']} adopted{why}")


def _show_decisions(decisions: dict[str, Any], trials: dict[str, Any], prompts: dict[str, int]) -> None:
    from oven_controller.terminal_text import say

    withheld = f", {decisions['withheld']} withheld" if decisions["withheld"] else ""
    not_kept = f", {decisions['not_kept']} tried and not kept" if decisions["not_kept"] else ""
    say(f"decisions: {decisions['adopted']} adopted, {decisions['rejected']} rejected{withheld}{not_kept}")
    injected = f"{prompts['injected']} prompts injected, {prompts['evicted']} made room" if prompts["injected"] else ""
    for line in (trials["summary"], trials["under_way"], injected):
        if line:
            say(f"  {line}")
    for decision, actuator in decisions["advised"].items():
        say(f"  advised on {actuator}: `oven-controller approve {decision}`")


def down(run: LiveRunName = None, run_: SameRun = None) -> None:
    """Shut a running stack down cleanly, with a checkpoint, and wait for it.

    Example: oven-controller down grpo-1121-0231
    """
    import os
    import signal

    from oven_controller.errors import ProcessError
    from oven_controller.runs.folder import Home

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
