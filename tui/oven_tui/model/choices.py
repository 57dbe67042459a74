"""The candidates for a command: knobs, agents, snapshots, levels, each with its facts."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.mesh.actuator_values import bounds, number
from oven_core.protocol.actuator_names import CHECKPOINT, ROLLBACK
from oven_core.protocol.messages import ActuatorSpec
from oven_runs.log.run_summary import format_value
from oven_tui.model.consequences import countdown, level, remaining
from oven_tui.model.decisions import Decided, Open
from oven_tui.model.monitor_view import MonitorView

ANY = ""
"""The id of "every actuator"."""
NEWEST, OTHER = "newest", "other"
"""Keys of the choices for the newest snapshot and for a tick that a person types."""


@dataclass(frozen=True, slots=True)
class Choice:
    id: str
    name: str
    detail: str = ""


def knobs(view: MonitorView) -> list[Choice]:
    return [Choice(spec.name, spec.name, _state(view, spec)) for spec in view.run.specs if spec.kind != "action"]


def actions(view: MonitorView) -> list[str]:
    return [spec.name for spec in view.run.specs if spec.kind == "action"]


def _state(view: MonitorView, spec: ActuatorSpec) -> str:
    within = f", {bounds(spec)}" if spec.low is not None or spec.high is not None else ""
    names = f", of {', '.join(spec.choices[:6])}" if spec.kind == "choice" else ""
    unit = f" {spec.unit}" if spec.unit else ""
    return f"{format_value(view.run.knobs.get(spec.name))}{unit}{within}{names}; {level(view, spec.name)}"


def autonomies(view: MonitorView) -> list[Choice]:
    """Return every actuator at once, then each, with its level."""
    each = [Choice(spec.name, spec.name, level(view, spec.name)) for spec in view.run.specs]
    return [Choice(ANY, "every actuator", level(view, ANY)), *each]


def levels() -> list[Choice]:
    return [
        Choice("observe", "observe", "agents' decisions are logged and not carried out"),
        Choice("advise", "advise", "agents' decisions wait for a person"),
        Choice("auto", "auto", "agents' decisions are carried out"),
    ]


def agents(view: MonitorView, what: str) -> list[Choice]:
    """Return the agents, those with most proposals first. `what` is mute, trust or distrust."""
    made = []
    for name in sorted(view.agents, key=lambda name: -view.run.agents[name].proposals):
        seen = view.run.agents[name]
        state = seen.shadow or ("newcomer" if seen.newcomer else "its votes count")
        does = f"unmute: {state}" if what == "mute" and name in view.run.muted else state
        made.append(Choice(name, name, f"{does}; {seen.proposals} proposals, {seen.backed} adopted"))
    return made


def trusted_with(view: MonitorView) -> list[Choice]:
    return [Choice(ANY, "every actuator"), *(Choice(spec.name, spec.name) for spec in view.run.specs)]


def advised(view: MonitorView) -> list[Choice]:
    waiting = [decision for decision in view.run.advised.values() if not view.run.lapsed(decision)]
    return [
        Choice(
            ballot.id,
            ballot.actuator,
            f"{format_value(ballot.before)} → {format_value(ballot.value)}, {countdown(view, ballot)}",
        )
        for ballot in waiting
    ]


def vetoable(view: MonitorView) -> list[Choice]:
    """Return the open ballots and advice, which may be vetoed now."""
    return [*(_ballot(view, ballot) for ballot in view.open.values()), *advised(view)]


def _ballot(view: MonitorView, ballot: Open) -> Choice:
    opened = ballot.opened
    closes = (
        f"→ {format_value(opened.proposal)} by {opened.opened_by}, closes in {remaining(view, opened.closes_at_tick)}"
    )
    return Choice(opened.id, opened.actuator, closes)


def snapshots(view: MonitorView) -> list[Choice]:
    """Return the ticks of snapshots in the log, the newest first. Snapshots by the clock are not in the log; the
    learner goes to the newest one at or before the named tick."""
    started = view.run.started
    rows = [(started.tick, started.step, "where the learner began")] if started is not None else []
    for entry in view.entries:
        receipt = entry.receipt if isinstance(entry, Decided) else None
        if receipt is None or not isinstance(entry, Decided) or receipt.status != "applied":
            continue
        if entry.decision.actuator == ROLLBACK:
            to = number(receipt.after)
            rows = [snapshot for snapshot in rows if to is None or snapshot[1] <= max(to, rows[0][1])]
        elif entry.decision.actuator == CHECKPOINT:
            rows.append((receipt.tick, receipt.step, "a checkpoint was asked for"))
        elif entry.decision.snapshot_first:
            change = f"{entry.decision.actuator} {format_value(receipt.before)} → {format_value(receipt.after)}"
            rows.append((receipt.tick, receipt.step, f"before {change}"))
    run = view.run
    listed = [
        Choice(str(tick), f"tick {tick}, step {step}", f"{why}; {max(0, run.step - step)} steps back")
        for tick, step, why in reversed(rows)
    ]
    return [
        Choice(NEWEST, "the newest snapshot", "wherever the learner has one"),
        *listed,
        Choice(OTHER, "another tick …", f"0 to {run.tick}; refused if no snapshot is close"),
    ]
