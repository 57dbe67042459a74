"""`status`: how a run is doing."""

from __future__ import annotations

from typing import Any

from oven_controller.cli.options import HERE, Json, RunName, SameRun, from_anywhere, one_run
from oven_runs.access.endpoint import Endpoint


@from_anywhere
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
        say(f"  judge {name}, when it started: {JudgeState.model_validate(judge).line()}")
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
