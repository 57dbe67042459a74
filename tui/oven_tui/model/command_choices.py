"""Lists the choices for a command, such as knobs, agents or snapshots, with a description of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oven_core.mesh.actuator_values import describe_bounds, number
from oven_core.protocol.actuators import CHECKPOINT, ROLLBACK
from oven_core.protocol.messages import ActuatorSpec
from oven_runs.log.run_summary import format_value
from oven_tui.model.consequences import autonomy_level, describe_expiry, format_time_until
from oven_tui.model.decision_entries import DecisionEntry, OpenBallot
from oven_tui.model.monitor_view import MonitorView

ANY = ""
"""Id of the choice "every actuator"."""
NEWEST, OTHER = "newest", "other"
"""Ids of the choices "the newest snapshot" and "another tick"."""


@dataclass(frozen=True, slots=True)
class Choice:
    id: str
    name: str
    detail: str = ""


def knobs(view: MonitorView) -> list[Choice]:
    return [Choice(spec.name, spec.name, _knob_details(view, spec)) for spec in view.run.specs if spec.kind != "action"]


def actions(view: MonitorView) -> list[str]:
    return [spec.name for spec in view.run.specs if spec.kind == "action"]


def _knob_details(view: MonitorView, spec: ActuatorSpec) -> str:
    limits = f", {describe_bounds(spec)}" if spec.low is not None or spec.high is not None else ""
    names = f", one of {', '.join(spec.choices[:6])}" if spec.kind == "choice" else ""
    unit = f" {spec.unit}" if spec.unit else ""
    return f"{format_value(view.run.knobs.get(spec.name))}{unit}{limits}{names}; {autonomy_level(view, spec.name)}"


def autonomies(view: MonitorView) -> list[Choice]:
    """Return a choice for all actuators, and one for each actuator, with their autonomy."""
    actuators = [Choice(spec.name, spec.name, autonomy_level(view, spec.name)) for spec in view.run.specs]
    return [Choice(ANY, "every actuator", autonomy_level(view, ANY)), *actuators]


def autonomy_levels() -> list[Choice]:
    return [
        Choice("observe", "observe", "agents' decisions are logged but not applied"),
        Choice("advise", "advise", "agents' decisions wait for approval"),
        Choice("auto", "auto", "agents' decisions are applied"),
    ]


def agents(view: MonitorView, action: str) -> list[Choice]:
    """Return the agents, those with the most proposals first. `action` is mute, trust or distrust."""
    choices = []
    for name in sorted(view.agents, key=lambda name: -view.run.agents[name].proposals):
        agent = view.run.agents[name]
        state = agent.shadow_reason or ("newcomer" if agent.is_newcomer else "its votes count")
        if action == "mute" and name in view.run.muted:
            state = f"unmute: {state}"
        votes = f"{agent.proposals} proposed, {agent.backed} adopted with its vote"
        choices.append(Choice(name, name, f"{state}; {votes}"))
    return choices


def trust_scopes(view: MonitorView) -> list[Choice]:
    return [Choice(ANY, "every actuator"), *(Choice(spec.name, spec.name) for spec in view.run.specs)]


def advised(view: MonitorView) -> list[Choice]:
    """Return the pending advice, which can be approved or vetoed."""
    choices = []
    for decision in view.run.advised.values():
        if not view.run.has_lapsed(decision):
            change = f"{format_value(decision.before)} → {format_value(decision.value)}"
            choices.append(Choice(decision.id, decision.actuator, f"{change}, {describe_expiry(view, decision)}"))
    return choices


def vetoable(view: MonitorView) -> list[Choice]:
    """Return the open ballots and the pending advice, which can be vetoed."""
    return [*(_ballot_choice(view, ballot) for ballot in view.open_ballots.values()), *advised(view)]


def _ballot_choice(view: MonitorView, ballot: OpenBallot) -> Choice:
    opened = ballot.opened
    time_left = format_time_until(view, opened.closes_at_tick)
    details = f"→ {format_value(opened.proposal)} by {opened.opened_by}, closes in {time_left}"
    return Choice(opened.id, opened.actuator, details)


class _Snapshot(NamedTuple):
    tick: int
    step: int
    description: str


def list_snapshots(view: MonitorView) -> list[Choice]:
    """Return the snapshots that the log contains, the newest first. It omits those taken at regular intervals. The
    learner rolls back to the newest snapshot at or before the chosen tick."""
    started = view.run.started
    snapshots = [_Snapshot(started.tick, started.step, "start of the learner")] if started is not None else []
    for entry in view.entries:
        if not isinstance(entry, DecisionEntry) or entry.receipt is None or entry.receipt.status != "applied":
            continue
        receipt = entry.receipt
        if entry.decision.actuator == ROLLBACK:
            target_step = number(receipt.after)
            if target_step is not None:  # a rollback discards later snapshots, but never the first one
                last_step = max(target_step, snapshots[0].step)
                snapshots = [snapshot for snapshot in snapshots if snapshot.step <= last_step]
        elif entry.decision.actuator == CHECKPOINT:
            snapshots.append(_Snapshot(receipt.tick, receipt.step, "requested checkpoint"))
        elif entry.decision.snapshot_first:
            change = f"{entry.decision.actuator} {format_value(receipt.before)} → {format_value(receipt.after)}"
            snapshots.append(_Snapshot(receipt.tick, receipt.step, f"before {change}"))
    run = view.run
    snapshot_choices = [
        Choice(str(tick), f"tick {tick}, step {step}", f"{description}; {max(0, run.step - step)} steps back")
        for tick, step, description in reversed(snapshots)
    ]
    return [
        Choice(NEWEST, "the newest snapshot", "the learner knows which one"),
        *snapshot_choices,
        Choice(OTHER, "another tick …", f"0 to {run.tick}; refused if there is no snapshot nearby"),
    ]
