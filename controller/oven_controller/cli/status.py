"""The `status` command: show how a run is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from oven_controller.cli.options import DEFAULT_RUN, json_option, print_result, remote_options, run_argument
from oven_core.errors import OvenError
from oven_core.terminal_text import counted
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_finder import find_run
from oven_runs.log.run_summary import counts_text, format_value, idle_text, quarantine_text

if TYPE_CHECKING:
    from oven_controller.stack.run_status import RunStatus


@click.command()
@run_argument(DEFAULT_RUN)
@json_option
@remote_options
def status(run: str | None, as_json: bool, endpoint: Endpoint) -> None:
    """Show how a run is doing: processes, memory, agents, ticks and decisions. Works even when the stack is down.

    Exit code 3 if the run's log could not be read.

    Example: oven-controller status --json
    """
    from oven_controller.stack.run_status import run_status

    report = asyncio.run(run_status(find_run(run, endpoint)))
    print_result(as_json, report, _status_lines(report))
    if report.log_error:
        raise click.exceptions.Exit(OvenError.exit_code)


def _status_lines(status: RunStatus) -> Iterator[str]:
    drill = f", DRILL: {status.drill}" if status.drill else ""
    state = "held" if status.held else status.status
    start = f", start {status.start}" if status.start else ""
    yield f"run {status.run}: {state} ({status.recipe}{start}{drill})"
    yield from _process_lines(status)
    yield from (f"! {note}" for note in status.notes)
    if status.log_error:
        yield f"the log could not be read: {status.log_error}"
        return
    yield f"step {status.step}, tick {status.tick}, {status.progress:.0%} done; {status.events} events"
    shown_metrics = [status.target, *(name for name in status.metrics if name.startswith("eval/"))]
    for name in dict.fromkeys(name for name in shown_metrics if name):
        yield f"  {name} {status.metrics[name]:.3f}"
    for name, value in status.knobs.items():
        if value is not None:
            yield f"  {name} = {format_value(value)}"
    yield from _decision_lines(status)
    yield from _cost_lines(status.judge_costs)
    for actuator, level in status.autonomy.items():
        subject = f"autonomy of {actuator}" if actuator else "autonomy"
        yield f"{subject}: {level}"
    if status.held:
        yield f"held: {status.held}"
    if status.ended_with:
        yield f"end: {status.ended_with}"
    yield from _agent_lines(status)


def _process_lines(status: RunStatus) -> Iterator[str]:
    for process in status.processes:
        memory = f"{process.memory_mb:.0f} MB" if process.alive else "not alive"
        yield f"  {process.name:<22} pid {process.pid:<8} {memory}"
    if status.processes:
        yield f"  {'total':<22}{'':13}{status.memory_mb:.0f} MB"


def _agent_lines(status: RunStatus) -> Iterator[str]:
    """Yield lines about the agents' alerts, the judges and the agents. Agents without votes share a line per state."""
    for alert in status.alerts:
        figures = f"{alert.metric} {float(alert.value):.3g}, expected bound {float(alert.expected):.3g}"
        yield f"! {alert.agent}: {alert.symptom} since tick {alert.tick} ({figures})"
    yield from (f"! {quarantine_text(member)}" for member in status.quarantined)
    for name, judge in status.judges.items():
        yield f"  judge {name}, at its start: {judge.summary()}"
    names_by_state: dict[str, list[str]] = {}
    idle_count = 0
    for name, agent in status.agents.items():
        activity = "live" if agent.live else "not live"
        if agent.failed:
            yield f"! agent {name} failed: {agent.cannot_fire}"
        elif agent.cannot_fire:
            idle_count += 1
        elif not (agent.proposals or agent.backed or agent.shadow):
            names_by_state.setdefault(f"{activity}, no proposals", []).append(name)
        else:
            votes = f"{counted(agent.proposals, 'proposal')}, voted for {counted(agent.backed, 'adopted decision')}"
            restrictions = f"; shadow: {agent.shadow}" if agent.shadow else ""
            yield f"  agent {name}: {activity}, {votes}{restrictions}"
    yield from (f"  {', '.join(names)}: {state}" for state, names in names_by_state.items())
    if idle_count:
        yield f"  {idle_text(idle_count, status.run)}"


def _decision_lines(status: RunStatus) -> Iterator[str]:
    decisions, prompts = status.decisions, status.prompts
    yield f"decisions: {counts_text(decisions.adopted, decisions.rejected, decisions.would_set)}"
    if prompts.injected:
        yield f"  {prompts.injected} prompts injected, {prompts.evicted} removed for them"
    for decision, actuator in decisions.advised.items():
        time_left = decisions.time_left[decision]
        yield f"  advised on {actuator}, expires in {time_left}: `oven-controller approve {decision}`"


def _cost_lines(costs: dict[str, Any]) -> list[str]:
    if not costs:
        return []
    limits = costs["budget"]
    parts = [
        f"${costs['cost_usd']:.4f}" + (f" of ${limits['usd']:g}" if "usd" in limits else ""),
        f"{costs['tokens']:,} tokens" + (f" of {limits['tokens']:,}" if "tokens" in limits else ""),
    ]
    if costs["calls"] is not None:
        parts.append(f"{costs['calls']:,} calls" + (f" of {limits['calls']:,}" if "calls" in limits else ""))
    lines = [f"judges: {', '.join(parts)}"]
    if costs.get("unanswered_calls"):
        lines.append(f"  {costs['unanswered_calls']} of the calls got no answer and are counted at their maximum cost")
    if costs.get("unpriced_calls"):
        lines.append(f"  {costs['unpriced_calls']} of the calls went to models with an unknown price")
    return lines
