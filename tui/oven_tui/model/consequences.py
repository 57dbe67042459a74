"""Describes the effect of a command on the run, for the dialog in which the operator confirms it."""

from __future__ import annotations

from oven_core.mesh.actuator_values import number
from oven_core.protocol.actuators import CHECKPOINT, HOLD, ROLLBACK, STOP, UNDO
from oven_core.protocol.messages import ActuatorSpec, Decision, Receipt
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_runs.log.run_summary import format_value
from oven_tui.model.cell_text import duration_text
from oven_tui.model.decision_entries import DecisionEntry
from oven_tui.model.monitor_view import MonitorView


def format_time_until(view: MonitorView, tick: int) -> str:
    """Return the steps and time until a tick, such as "12 steps (about 3 min)"."""
    steps = max(0, tick - view.run.tick)
    time = f" (about {duration_text(steps * view.pace_s)})" if view.pace_s and not view.run.hold_reason else ""
    hold_note = " after the run is resumed" if view.run.hold_reason else ""
    return f"{steps} step{'' if steps == 1 else 's'}{time}{hold_note}"


def describe_expiry(view: MonitorView, decision: Decision) -> str:
    if view.run.has_lapsed(decision):
        return f"lapsed {view.run.tick - decision.expires_at_tick} steps ago"
    return f"lapses in {format_time_until(view, decision.expires_at_tick + 1)}"


def describe_command(view: MonitorView, command: OperatorCommand) -> str:
    """Describe the command's effect on the run, according to the log so far."""
    match command.action:
        case "hold" | "resume" | "stop":
            return _describe_run_action(view, command.action)
        case "approve":
            return _describe_approval(view, command.subject_id)
        case "veto":
            return _describe_veto(view, command.subject_id)
        case "set":
            return _describe_setting(view, command)
        case "autonomy":
            return _describe_autonomy(view, command)
        case "mute" | "unmute" | "trust" | "distrust":
            return _describe_agent_action(view, command)
        case action:
            return f"Sends the command {action}."


def _describe_run_action(view: MonitorView, action: str) -> str:
    run = view.run
    max_steps = run.max_steps
    position = f"step {run.step}" + (f" of {max_steps}" if max_steps else "")
    match action:
        case "hold":
            pace = f" (a step takes {duration_text(view.pace_s)})" if view.pace_s >= 1 else ""
            return f"Training pauses after {position}{pace} until it is resumed. Nothing is lost."
        case "resume":
            if run.hold_reason:
                return f"Training continues after {position}. The reason for the hold: {run.hold_reason}"
            return f"Training is at {position} and is not held."
        case _:
            remaining_steps = f", with {max_steps - run.step} steps left" if max_steps and max_steps > run.step else ""
            return (
                f"The run ends after {position}{remaining_steps}. A trainer saves a checkpoint first; your own loop "
                "has to save by itself. Only `oven-controller up --resume` can continue it."
            )


def _describe_approval(view: MonitorView, subject: str) -> str:
    entry = find_advice(view, subject)
    if entry is None:
        return f"The decision {subject} is no longer in the monitor's list; the mesh will report its state."
    decision = entry.decision
    supporters = [line.agent for line in decision.tally if line.stance in ("propose", "for") and line.weight]
    source = f", as proposed by {_join_names(supporters)}" if supporters else ""
    snapshot = " Because the change is risky, a snapshot is taken first." if decision.snapshot_first else ""
    value = view.run.knobs.get(decision.actuator)
    if value is None:
        value = decision.before
    note = "" if value == decision.before else f" When it was advised, the value was {format_value(decision.before)}."
    change = change_text(decision.actuator, value, decision.value)
    return f"{change} at the end of the next step{source}; it {describe_expiry(view, decision)}.{snapshot}{note}"


def _describe_veto(view: MonitorView, subject: str) -> str:
    ballots_on_actuator = (ballot for ballot in view.open_ballots.values() if ballot.opened.actuator == subject)
    ballot = view.open_ballots.get(subject) or next(ballots_on_actuator, None)
    if ballot is not None:
        opened = ballot.opened
        return (
            f"The ballot on {opened.actuator} (→ {format_value(opened.proposal)}, opened by {opened.opened_by}; "
            f"{len(ballot.votes)} of {len(opened.eligible)} have voted) is rejected immediately. "
            f"Otherwise it would close in {format_time_until(view, opened.closes_at_tick)}."
        )
    entry = find_advice(view, subject)
    if entry is None:
        return f"{subject} is no longer an open ballot or pending advice; the mesh will report why."
    decision = entry.decision
    return (
        f"The advice {change_text(decision.actuator, decision.before, decision.value)} can no longer be approved; "
        f"{decision.actuator} stays at {format_value(view.run.knobs.get(decision.actuator))}."
    )


def _describe_setting(view: MonitorView, command: OperatorCommand) -> str:
    name, step = command.actuator, view.run.step
    if name == ROLLBACK:
        return _describe_rollback(view, command)
    if name == UNDO:
        return _describe_undo(view)
    if name == CHECKPOINT:
        return (
            f"A checkpoint is taken after step {step}: a file if a trainer saves it, otherwise a copy in memory for "
            "rollbacks. Training waits for it and then continues unchanged."
        )
    if name in (HOLD, STOP):
        return _describe_run_action(view, "hold" if name == HOLD else "stop")
    spec = find_spec(view, name)
    if spec is not None and spec.kind == "action":
        return f"{name} runs at the end of the next step."
    snapshot = ", after a snapshot because it is risky" if spec is not None and spec.risky else ""
    change = change_text(name, view.run.knobs.get(name), command.value)
    return f"{change} at the end of the next step{snapshot}."


def _describe_undo(view: MonitorView) -> str:
    last = find_last_rollback(view)
    if last is None:
        return "Undoes the last rollback. The log has no applied rollback, so the mesh will refuse this."
    return (
        f"The run returns to step {format_value(last.before)}, as before the rollback at tick {last.tick}. "
        f"The {max(0, view.run.step - int(number(last.after) or 0))} steps since then are discarded."
    )


def _describe_rollback(view: MonitorView, command: OperatorCommand) -> str:
    tick, step = number(command.value), view.run.step
    if tick is None:
        return f"The run rolls back from step {step} to the newest snapshot. Later steps are trained again."
    target_step = view.step_at(int(tick))
    lost_steps = max(0, step - target_step)
    time = f" (about {duration_text(lost_steps * view.pace_s)})" if view.pace_s else ""
    return (
        f"The run rolls back from step {step} to the newest snapshot up to tick {int(tick)} (step {target_step}). "
        f"At least {lost_steps} steps are trained again{time}."
    )


def _describe_autonomy(view: MonitorView, command: OperatorCommand) -> str:
    scope = command.actuator or "every actuator"
    effects = {"observe": "are logged but not applied", "advise": "wait for approval", "auto": "are applied"}
    effect = effects[command.autonomy or "auto"]
    current_level = autonomy_level(view, command.actuator)
    return f"From now on, agents' decisions on {scope} {effect}. The level is now {current_level}."


def _describe_agent_action(view: MonitorView, command: OperatorCommand) -> str:
    agent, name = view.run.agents.get(command.agent), command.agent
    record = f"{agent.proposals} proposals so far, {agent.backed} adopted decisions" if agent else "no messages yet"
    scope = _join_names(command.actuators) if command.actuators else "every actuator"
    match command.action:
        case "mute":
            return f"From now on, votes of {name} ({record}) are logged and scored but do not count."
        case "unmute":
            return f"Votes of {name} ({record}) count again from the next ballot on."
        case "trust":
            effect = f"votes of {name} ({record}) can decide and veto changes of {scope}"
            return f"From the next tally on, {effect}. Its proposals do not decide alone."
        case _:
            return f"{name} ({record}) is put on probation: its votes cannot decide or veto changes of {scope}."


def change_text(name: str, before: object, value: object) -> str:
    """Return a change with its size, such as "optimizer.lr_scale 1 → 0.5 (× 0.5)"."""
    old, new = number(before), number(value)  # type: ignore[arg-type]
    size = f" (× {new / old:.3g})" if old and new is not None and new != old else ""
    return f"{name} {format_value(before)} → {format_value(value)}{size}"  # type: ignore[arg-type]


def autonomy_level(view: MonitorView, actuator: str) -> str:
    """Return the current autonomy, from an operator's command or otherwise from the run's rules."""
    run = view.run
    rules = run.started.rules if run.started else Rules()
    return rules.autonomy_for(actuator, run.autonomy)


def find_spec(view: MonitorView, actuator: str) -> ActuatorSpec | None:
    return next((spec for spec in view.run.specs if spec.name == actuator), None)


def find_advice(view: MonitorView, subject: str) -> DecisionEntry | None:
    """Return the newest advice with this id or on this actuator."""
    decisions = (entry for entry in reversed(view.entries) if isinstance(entry, DecisionEntry))
    advice_entries = (entry for entry in decisions if entry.decision.verdict == "advised")
    return next((entry for entry in advice_entries if subject in (entry.decision.id, entry.decision.actuator)), None)


def find_last_rollback(view: MonitorView) -> Receipt | None:
    receipts = (entry.receipt for entry in reversed(view.entries) if isinstance(entry, DecisionEntry) and entry.receipt)
    return next((receipt for receipt in receipts if receipt.actuator == ROLLBACK and receipt.status == "applied"), None)


def _join_names(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
