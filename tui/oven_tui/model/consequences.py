"""A command's consequence in one sentence with figures, for the confirmation."""

from __future__ import annotations

from oven_core.mesh.actuator_values import number
from oven_core.protocol.actuator_names import CHECKPOINT, HOLD, ROLLBACK, STOP, UNDO
from oven_core.protocol.messages import ActuatorSpec, Decision, Receipt
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.log.run_summary import format_value
from oven_tui.model.cell_text import ago
from oven_tui.model.decisions import Decided
from oven_tui.model.monitor_view import MonitorView


def remaining(view: MonitorView, tick: int) -> str:
    """Return how long it is until a tick, in steps and in time: "12 steps (about 3 min)"."""
    steps = max(0, tick - view.run.tick)
    time = f" (about {ago(steps * view.pace_s)})" if view.pace_s and not view.run.held else ""
    held = ", while the run is held: no step passes" if view.run.held else ""
    return f"{steps} step{'' if steps == 1 else 's'}{time}{held}"


def countdown(view: MonitorView, decision: Decision) -> str:
    if view.run.lapsed(decision):
        return f"lapsed {view.run.tick - decision.expires_at_tick} steps ago"
    return f"lapses in {remaining(view, decision.expires_at_tick + 1)}"


def sentence(view: MonitorView, command: OperatorCommand) -> str:
    """Return a sentence with the command's effect on the run, according to the log so far."""
    match command.action:
        case "hold" | "resume" | "stop":
            return _of_run(view, command.action)
        case "approve":
            return _approval(view, command.subject_id)
        case "veto":
            return _veto(view, command.subject_id)
        case "set":
            return _setting(view, command)
        case "autonomy":
            return _autonomy(view, command)
        case "mute" | "unmute" | "trust" | "distrust":
            return _agent(view, command)
        case action:
            return f"Gives the command {action}."


def _of_run(view: MonitorView, action: str) -> str:
    run = view.run
    most = run.max_steps
    position = f"step {run.step}" + (f" of {most}" if most else "")
    match action:
        case "hold":
            pace = f" (a step takes {ago(view.pace_s)})" if view.pace_s >= 1 else ""
            return f"Training stops after {position}{pace}, and waits until it is resumed. Nothing is lost."
        case "resume":
            held = f"Training continues after {position}. It is held: {run.held}"
            return held if run.held else f"Training is at {position}."
        case _:
            untrained = f": {most - run.step} steps are not trained" if most and most > run.step else ""
            return (
                f"The run ends after {position}, with a checkpoint{untrained}. "
                "`oven-controller up --resume` continues it; the monitor cannot."
            )


def _approval(view: MonitorView, subject: str) -> str:
    entry = advice(view, subject)
    if entry is None:
        return f"The decision {subject} is no longer in the monitor's list; the mesh says what becomes of it."
    decision = entry.decision
    backed = [line.agent for line in decision.tally if line.stance in ("propose", "for") and line.weight]
    by = f", as {_listed(backed)} proposed" if backed else ""
    snapshot = " A snapshot is taken first: it is risky." if decision.snapshot_first else ""
    now = view.run.knobs.get(decision.actuator)
    moved = (
        ""
        if now == decision.before or now is None
        else f" It was advised when {format_value(decision.before)} was set."
    )
    change = changed(decision.actuator, now if now is not None else decision.before, decision.value)
    return f"{change} at the end of the next step{by}; it {countdown(view, decision)}.{snapshot}{moved}"


def _veto(view: MonitorView, subject: str) -> str:
    ballot = view.open.get(subject) or next(
        (candidate for candidate in view.open.values() if candidate.opened.actuator == subject), None
    )
    if ballot is not None:
        opened = ballot.opened
        return (
            f"The ballot on {opened.actuator} (→ {format_value(opened.proposal)}, opened by {opened.opened_by}; "
            f"{len(ballot.votes)} of {len(opened.eligible)} have voted) is rejected at once. "
            f"It would close in {remaining(view, opened.closes_at_tick)}."
        )
    entry = advice(view, subject)
    if entry is None:
        return f"{subject} is neither open nor advised any more; the mesh will say why."
    decision = entry.decision
    return (
        f"The advice {changed(decision.actuator, decision.before, decision.value)} cannot be approved any more; "
        f"{decision.actuator} stays at {format_value(view.run.knobs.get(decision.actuator))}."
    )


def _setting(view: MonitorView, command: OperatorCommand) -> str:
    step = view.run.step
    match command.actuator:
        case name if name == ROLLBACK:
            return _rollback(view, command)
        case name if name == UNDO:
            last = last_rollback(view)
            if last is None:
                return "Takes the last rollback back; the log has none that was carried out, so it will be refused."
            return (
                f"Forward again to step {format_value(last.before)}, which the rollback at tick {last.tick} left "
                f"for step {format_value(last.after)}; the {max(0, step - int(number(last.after) or 0))} steps since "
                "are thrown away."
            )
        case name if name == CHECKPOINT:
            return f"A checkpoint is written after step {step}; training waits for it and is not changed."
        case name if name in (HOLD, STOP):
            return _of_run(view, "hold" if name == HOLD else "stop")
        case name:
            spec = spec_of(view, name)
            if spec is not None and spec.kind == "action":
                return f"{name} is done at the end of the next step."
            risky = ", after a snapshot: it is risky" if spec is not None and spec.risky else ""
            return f"{changed(name, view.run.knobs.get(name), command.value)} at the end of the next step{risky}."


def _rollback(view: MonitorView, command: OperatorCommand) -> str:
    tick, step = number(command.value), view.run.step
    if tick is None:
        return f"The run goes back from step {step} to the newest snapshot; the steps since are trained again."
    to = view.step_at(int(tick))
    lost = max(0, step - to)
    time = f", about {ago(lost * view.pace_s)} of training" if view.pace_s else ""
    return (
        f"The run goes back from step {step} to the newest snapshot from tick {int(tick)} (step {to}) or before: "
        f"{lost} steps or more are trained again{time}."
    )


def _autonomy(view: MonitorView, command: OperatorCommand) -> str:
    what = command.actuator or "every actuator"
    meaning = {
        "observe": "agents' decisions on it are logged and not carried out",
        "advise": "agents' decisions on it wait for a person's approval",
        "auto": "agents' decisions on it are carried out",
    }[command.autonomy or "auto"]
    return f"From now on {meaning}: {what}, {level(view, command.actuator)} so far."


def _agent(view: MonitorView, command: OperatorCommand) -> str:
    agent, name = view.run.agents.get(command.agent), command.agent
    spoke = f"{agent.proposals} proposals so far, {agent.backed} adopted decisions" if agent else "not heard yet"
    where = _listed(command.actuators) if command.actuators else "every actuator"
    match command.action:
        case "mute":
            return f"Votes of {name} ({spoke}) are logged and scored from now on, and do not count."
        case "unmute":
            return f"Votes of {name} ({spoke}) count again from the next ballot on."
        case "trust":
            return f"Votes of {name} ({spoke}) can decide and veto from the next tally on: {where}."
        case _:
            return f"{name} ({spoke}) is on probation: its votes neither decide nor veto: {where}."


def changed(name: str, before: object, value: object) -> str:
    """Return a change with its size: "optimizer.lr_scale 1 → 0.5 (× 0.5)"."""
    old, new = number(before), number(value)  # type: ignore[arg-type]
    size = f" (× {new / old:.3g})" if old and new is not None and new != old else ""
    return f"{name} {format_value(before)} → {format_value(value)}{size}"  # type: ignore[arg-type]


def level(view: MonitorView, actuator: str) -> str:
    """Return the autonomy in force: the operators' setting, or the rules'."""
    run = view.run
    own_level = run.autonomy.get(actuator) or run.autonomy.get("")
    if own_level:
        return own_level
    return run.started.rules.autonomy_for(actuator) if run.started else "auto"


def spec_of(view: MonitorView, actuator: str) -> ActuatorSpec | None:
    return next((spec for spec in view.run.specs if spec.name == actuator), None)


def advice(view: MonitorView, subject: str) -> Decided | None:
    """Return the newest advised decision with that id or on that actuator."""
    decided = (entry for entry in reversed(view.entries) if isinstance(entry, Decided))
    advised = (entry for entry in decided if entry.decision.verdict == "advised")
    return next((entry for entry in advised if subject in (entry.decision.id, entry.decision.actuator)), None)


def last_rollback(view: MonitorView) -> Receipt | None:
    receipts = (entry.receipt for entry in reversed(view.entries) if isinstance(entry, Decided) and entry.receipt)
    return next((r for r in receipts if r.actuator == ROLLBACK and r.status == "applied"), None)


def _listed(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")
