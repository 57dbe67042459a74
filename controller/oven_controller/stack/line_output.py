"""The line output of `up`: regular progress, every decision and receipt, and a summary at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    WITHHELD_PREFIX,
    AgentStatus,
    Decision,
    LearnerMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand, OperatorKey
from oven_core.security.signing import OPERATOR
from oven_core.terminal_text import clean, counted, shorten
from oven_runs.log.active_alerts import alert_text
from oven_runs.log.announcement_text import describe_actuator, describe_prompts
from oven_runs.log.decision_line import decision_line, headline, short_knob
from oven_runs.log.message_gaps import GapFinder
from oven_runs.log.open_advice import Reminders, format_remaining_time
from oven_runs.log.run_summary import (
    RunSummary,
    format_value,
    idle_text,
    quarantine_text,
    training_signal,
)

if TYPE_CHECKING:  # `explain` needs a text from this module, but no settings
    from oven_runs.settings.resolution import ResolvedSettings

PROGRESS_LINES = 12
"""Number of progress lines in a run with a known number of steps."""
MAX_COLUMNS = 160
"""Maximum length of a line. Longer texts are cut after a word; the log has all of them."""
MIN_INTERVAL_STEPS = 5
"""Minimum steps between two progress lines."""
READING_STEPS = 20
"""Minimum number of steps between two lines with a reading of the target, unless they are due anyway."""
SUMMARY_DELAY = 2
"""Number of observations after which the stack's own agents are summarised."""
DEFAULT_INTERVAL_STEPS = 10
"""Steps between two progress lines if the number of steps is unknown."""
STOP_REASON = "asked to stop"
"""The reason that agents give when they leave at shutdown."""


def start_line(resolved: ResolvedSettings) -> str:
    """Return the line that says how a run starts. Drills are labelled as such."""
    start = resolved.start
    if start is None:
        return "attached: decisions are logged, and knobs change only where rules.autonomy is auto"
    if not start.label:
        return f"start {start.name}: {start.describe()}"
    if start.label.startswith("DRILL"):
        return start.label
    label = start.label.rstrip(". ")
    name = start.name.removeprefix("drill:")
    return f"DRILL {name}: {label}. Staged on purpose; no agent is told."


def command_text(command: OperatorCommand) -> str:
    """Describe a command: its action, what it applies to and its reason."""
    details = [command.subject_id, command.actuator, command.agent, command.autonomy or ""]
    if command.value is not None:
        details.append(format_value(command.value))
    return " ".join(part for part in (command.action, *details, command.reason) if part)


def outcome_text(body: Outcome) -> str:
    """Describe a change's effect on its target, compared with the forecast, or why there is no score."""
    subject = f"{body.actuator or 'clear harm'} on {body.target}"
    if not body.scored:
        return f"{subject} has no score: {body.reason}"
    pairs = (("gain", body.gain), ("forecast", body.forecast), ("noise", body.noise))
    figures = ", ".join(f"{name} {value:.3g}" for name, value in pairs if value is not None)
    reputations = ", ".join(
        f"{entry.agent} {entry.before:.2f} → {entry.after:.2f}" for entry in body.lines if not entry.shadow
    )
    return f"{subject}: {figures or 'no figures'}" + (f"; reputations {reputations}" if reputations else "")


def event_line(event: Event) -> str:
    """Return the line of an event, or an empty string if the line also depends on earlier events."""
    match event.body:
        case RunStarted() as body:
            return f"learner  {_run_start_text(body)}"
        case Receipt() as body:
            return f"receipt  {_receipt_text(body)}"
        case OperatorCommand() as body:
            sender = "operator" if event.author == OPERATOR else f"operator {event.author}"
            return f"{sender}: {command_text(body)}"
        case OperatorKey() as body:
            return f"operator {body.name}: the key was {'added' if body.key else 'revoked'}"
        case CommandAnswer() as body:
            return f"answer   to {body.operator}: {body.action} {'done' if body.done else 'refused'}: {body.reason}"
        case Outcome() as body:
            return f"outcome  {outcome_text(body)}"
        case ActuatorAnnounced() as body:
            return f"learner  {describe_actuator(body)}"
        case Alert() as body:
            return f"alert    {event.author}: {alert_text(body)}"
        case PromptsInjected() as body:
            return f"prompts  {describe_prompts(body)}"
        case RunEnded() as body:
            return f"learner  {body.reason} at step {body.step}{_reason_suffix(body.detail)}"
        case _:
            return ""


def _run_start_text(body: RunStarted) -> str:
    limits = [f"{body.horizon.max_steps} steps"] if body.horizon.max_steps else []
    limits += [f"{body.horizon.seconds:g} s"] if body.horizon.seconds else []
    # format_value returns "–" for an action, which has no value.
    knobs = ", ".join(f"{spec.name} {format_value(spec.value)}".strip(" –") for spec in body.actuators)
    parts = f"knobs: {knobs}" if knobs else f"no knobs, {counted(len(body.metrics), 'metric')}"
    return f"{body.recipe}, {' or '.join(limits) or 'no limit'}; {parts}"


def _receipt_text(body: Receipt) -> str:
    if not body.decision_id:
        # The learner's own commands have ids that start with "local-". All others come from an operator.
        source = " command" if body.command and not body.command.startswith("local-") else ""
        return f"{body.actuator}{source} {body.status} at step {body.step}: {body.reason}"
    change = f"{format_value(body.before)} → {format_value(body.after)}"
    return f"{body.actuator} {change} {body.status} at step {body.step}{_reason_suffix(body.reason)}"


def _reason_suffix(text: str) -> str:
    return f": {text}" if text else ""


def _is_as_decided(decision: Decision | None, receipt: Receipt) -> bool:
    """Return whether an agent's change was applied, and the value that was read back is the decided one. An operator
    who ordered a change wants to see its receipt."""
    if decision is None or decision.command or receipt.status != "applied" or receipt.reason:
        return False
    return _is_close(decision.value, receipt.after)


def _is_close(value: Value, read_back: Value) -> bool:
    if isinstance(value, dict) and isinstance(read_back, dict):
        return value.keys() == read_back.keys() and all(_is_close(value[name], read_back[name]) for name in value)
    if isinstance(value, int | float) and isinstance(read_back, int | float):
        return math.isclose(value, read_back, rel_tol=1e-6, abs_tol=1e-9)
    return value == read_back


class LinePrinter:
    """Prints the events of a run, using only its log.

    The stack's own agents are summarised in one line at the second observation, because their statuses may be logged
    after the first. Agents with nothing to do are only counted.
    A decision has one line. Its receipt has another if an operator ordered the change, or if it was not applied as
    decided.
    """

    def __init__(self, out: Callable[[str], None], run: str, start: datetime, own_agents: Collection[str] = ()) -> None:
        self.out = out
        self._run = run
        self.view = RunSummary()
        self.gap_finder = GapFinder()
        self._start = start
        self._printed_step = -1
        """Step of the last progress line, or -1 if there is none since the learner started."""
        self._printed_reading_step = 0
        """Step of the last progress line with a reading of the target."""
        self._reminders = Reminders()
        self._own_agents = own_agents
        self._observations_to_summary = SUMMARY_DELAY
        """Number of observations before the summary of the stack's own agents; 0 after it."""
        self._counted_idle = 0
        """Number of own agents with nothing to do, as of the last printed line about them."""
        self._repetitions: dict[str, tuple[str, int]] = {}
        """For each knob, the last proposal that was not adopted, and how often it was repeated."""
        self._unconfirmed: dict[str, Decision] = {}
        """The adopted decisions without a receipt, by id."""
        self._idle_reasons: dict[str, str] = {}
        """For each agent, the last reason why it has nothing to do."""
        self._quarantined_members: list[str] = []

    def count(self, event: Event) -> None:
        """Update the counts for the summary without printing. Events of earlier incarnations are only counted."""
        self.view.feed(event)
        if isinstance(event.body, LearnerMessage):
            self.gap_finder.feed(event.body)

    def on_event(self, event: Event) -> None:
        knobs_before = dict(self.view.knobs)
        live_agents = {name for name, agent in self.view.agents.items() if agent.is_live}
        self.count(event)
        match event.body:
            case RunStarted():
                self._printed_step, self._printed_reading_step = -1, 0
            case Observation() as body:
                self._print_observation(event, body)
            case Decision() as body:
                self._print_decision(event, body, knobs_before.get(body.actuator, body.before))
            case Receipt() as body:
                decision = self._unconfirmed.pop(body.decision_id, None)
                if _is_as_decided(decision, body):
                    return
            case AgentStatus() as body:
                self._print_agent_status(event, body, event.author in live_agents)
            case Alert() if self.view.alert is None:
                return  # this event neither raised nor cleared an alert
            case RunEnded():
                for actuator in list(self._repetitions):
                    self._print_repetitions(event, actuator)
        if line := event_line(event):
            self._print(event, line)

    def _print_decision(self, event: Event, body: Decision, before: Value) -> None:
        """Print a decision. Repetitions of a proposal that was not adopted are only counted."""
        change = headline(body, before)
        last_change, times = self._repetitions.get(body.actuator, ("", 0))
        if change == last_change:
            self._repetitions[body.actuator] = (change, times + 1)
            return
        self._print_repetitions(event, body.actuator)
        if body.verdict == "adopted":
            self._unconfirmed[body.id] = body
        else:
            self._repetitions[body.actuator] = (change, 0)
        self._print(event, decision_line(body, self.view.step, before, MAX_COLUMNS - len(self._time_text(event))))

    def _print_repetitions(self, event: Event, actuator: str) -> None:
        """Print how often the knob's last proposal was repeated."""
        change, times = self._repetitions.pop(actuator, ("", 0))
        if times:
            self._print(event, f"{change}, repeated {counted(times, 'time')}")

    def _print_agent_status(self, event: Event, body: AgentStatus, was_live: bool) -> None:
        """Print a notice, or a change of an agent's state. Omit proposals that an agent withheld, and agents that leave
        after the run's end."""
        name = event.author
        match body.state:
            case "notice" if not body.reason.startswith(WITHHELD_PREFIX):
                self._print(event, f"notice   {name}: {body.reason}")
            case "joined" if not was_live:  # agents also join when a run starts, and after each loss of the connection
                if name not in self._own_agents or not self._observations_to_summary:
                    self._print(event, f"agent    {name} joined{_reason_suffix(body.reason)}")
            case "done" if name in self._idle_reasons and not self.view.agents[name].idle_reason:
                del self._idle_reasons[name]  # it joined again, because the run has announced its knob
                self._print(event, f"agent    {name} can act now")
            case "cannot_fire" if self._idle_reasons.get(name) != body.reason:
                self._idle_reasons[name] = body.reason
                if name not in self._own_agents:
                    self._print(event, f"agent    {name} has nothing to do{_reason_suffix(body.reason)}")
            case "failed":
                self._print(event, f"agent    {name} failed and votes no more{_reason_suffix(body.reason)}")
            case "left" if body.reason != STOP_REASON or (self.view.started and self.view.ended is None):
                self._print(event, f"agent    {name} left{_reason_suffix(body.reason)}")

    def _summarise_own_agents(self, event: Event) -> None:
        """Print how many own agents joined, once, and how many have nothing to do, again when more have."""
        own_agents = [agent for name, agent in self.view.agents.items() if name in self._own_agents and agent.is_live]
        idle_count = sum(bool(agent.idle_reason) for agent in own_agents)
        parts = [f"{counted(len(own_agents), 'agent')} joined"] if self._observations_to_summary and own_agents else []
        self._observations_to_summary = max(0, self._observations_to_summary - 1)
        if self._observations_to_summary:
            return
        if idle_count > self._counted_idle:
            parts.append(idle_text(idle_count, self._run))
        self._counted_idle = idle_count
        if parts:
            self._print(event, "; ".join(parts))

    def _print_observation(self, event: Event, body: Observation) -> None:
        self._summarise_own_agents(event)
        for member in self.view.quarantined():
            if member not in self._quarantined_members:
                self._print(event, quarantine_text(member))
        self._quarantined_members = self.view.quarantined()
        for advice in self._reminders.select(self.view):
            time_left = format_remaining_time(advice, self.view.tick)
            command = f"oven-controller approve {advice.id}"
            self._print(event, f"advice   on {advice.actuator} expires in {time_left}: `{command}`")
        self._print_progress(event, body)

    def _print_progress(self, event: Event, body: Observation) -> None:
        """Print the step, metrics and changed knobs, at regular steps, and a reading of the target if none was printed
        for READING_STEPS."""
        max_steps = self.view.max_steps
        interval = max(MIN_INTERVAL_STEPS, max_steps // PROGRESS_LINES) if max_steps else DEFAULT_INTERVAL_STEPS
        target = self.view.target()
        held_out = [target] if target in self.view.held_out() and target in body.metrics else []
        is_due = body.step // interval != self._printed_step // interval or self._printed_step < 0
        is_rare = body.step >= self._printed_reading_step + READING_STEPS or body.step == max_steps
        if not (is_due or (held_out and is_rare)):
            return
        self._printed_step = body.step
        if held_out:
            self._printed_reading_step = body.step
        metrics = [name for name in (training_signal(body.metrics), *held_out) if name]
        parts = [f"{name} {body.metrics[name]:.3f}" for name in metrics]
        initial_values = {spec.name: spec.value for spec in self.view.specs if spec.kind != "action"}
        for name, initial in initial_values.items():
            value = self.view.knobs.get(name)
            if isinstance(value, float) and (name == "optimizer.lr_scale" or value != initial):
                parts.append(f"{short_knob(name)} {format_value(value)}")
        limit = f"/{max_steps}" if max_steps else ""
        self._print(event, f"step {body.step:>4}{limit}  " + "  ".join(parts))

    def _print(self, event: Event, line: str) -> None:
        self.out(shorten(self._time_text(event) + clean(line), MAX_COLUMNS))

    def _time_text(self, event: Event) -> str:
        return f"{(event.time - self._start).total_seconds():7.1f} s  "

    def summary(self) -> list[str]:
        """Return the outcome of the run, one fact per line."""
        view = self.view
        end = view.ended.reason if view.ended else "stopped without a logged end"
        duration_s = (view.last_time - self._start).total_seconds() if view.last_time else 0.0
        lines = [f"{end} at step {view.step} after {duration_s:.1f} s; {view.observations} observations"]
        if name := view.target():
            first, last = view.first_values[name], view.metrics[name]
            if view.ended is None:
                lines.append(f"{name} {first:.3f} at the start, {last:.3f} when last measured (the log has no end)")
            else:
                lines.append(f"{name} {first:.3f} → {last:.3f} ({last - first:+.3f})")
        initial_values = {spec.name: spec.value for spec in view.specs}
        for name, value in view.changed_knobs():
            authors = ", ".join(view.changed_by.get(name, ()))
            change = f"{name} {format_value(initial_values[name])} → {format_value(value)}"
            lines.append(f"{change}, by {authors}" if authors else change)
        receipts = ", ".join(f"{count} {status}" for status, count in sorted(view.receipts.items()))
        advised = f", {len(view.advised)} advised and not approved" if view.advised else ""
        decisions = f"decisions: {view.decision_counts()}{advised}"
        outcomes = f"; {counted(view.outcomes, 'outcome')} scored" if view.outcomes else ""
        lines.append(f"{decisions}; receipts: {receipts or 'none'}{outcomes}")
        lines += self._agent_lines()
        lines += [f"uncleared alert from {name}: {alert_text(alert)}" for name, alert in view.alerts.active()]
        lines += [quarantine_text(member) for member in view.quarantined()]
        if view.malformed:
            lines.append(f"skipped {counted(view.malformed, 'malformed message')}")
        if view.ended and view.ended.lockstep_timeouts:
            lines.append(f"{counted(view.ended.lockstep_timeouts, 'lockstep timeout')}: this run is not reproducible")
        if view.ended and view.ended.dropped_observations:
            lines.append(f"lost {counted(view.ended.dropped_observations, 'observation')} while the bus was down")
        return [shorten(clean(line), MAX_COLUMNS) for line in lines]

    def _agent_lines(self) -> list[str]:
        """Return the counts of votes, then the agents that are shadows, on probation, failed, silent or idle."""
        agents = sorted(self.view.agents.items())
        counts_by_kind = {
            "proposals": {name: agent.proposals for name, agent in agents if agent.proposals},
            "objections": {name: agent.against for name, agent in agents if agent.against},
        }
        lines = [
            f"{kind}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda it: -it[1]))
            for kind, counts in counts_by_kind.items()
            if counts
        ]
        lines += [f"agent {name} is a shadow: {agent.shadow_reason}" for name, agent in agents if agent.shadow_reason]
        lines += [f"agent {name} failed: {agent.failure_reason}" for name, agent in agents if agent.failure_reason]
        if newcomers := [name for name, agent in agents if agent.is_newcomer]:
            lines.append(f"on probation: {', '.join(newcomers)}")
        idle_agents = self.view.idle_agents()
        silent_agents = [
            name for name, agent in agents if name not in idle_agents and not (agent.last_vote or agent.failure_reason)
        ]
        if silent_agents:
            lines.append(f"did not vote: {', '.join(silent_agents)}")
        if idle_agents:
            lines.append(idle_text(len(idle_agents), self._run))
        return lines
