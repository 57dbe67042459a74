"""The line output of `up`: regular progress, every decision and receipt, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    LearnerMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand, OperatorKey
from oven_core.security.signing import OPERATOR
from oven_core.terminal_text import clean, counted
from oven_runs.log.active_alerts import alert_text
from oven_runs.log.announcement_text import describe_actuator, describe_prompts
from oven_runs.log.message_gaps import GapFinder
from oven_runs.log.open_advice import Reminders, format_remaining
from oven_runs.log.run_summary import (
    AgentView,
    RunSummary,
    format_value,
    quarantine_text,
    training_signal,
    verdict_text,
)
from oven_runs.settings.resolution import Resolved

PROGRESS_LINES = 24
"""Number of progress lines in a run with a known number of steps."""
MIN_INTERVAL_STEPS = 5
INTERVAL_STEPS = 10
"""Steps between two progress lines if the number of steps is unknown."""


ASKED_TO_STOP = "asked to stop"
"""The reason of an agent that leaves at the end of the stack. One line counts them."""


def first_line(resolved: Resolved) -> str:
    """Return the first line of a run. It announces a drill as a drill."""
    start = resolved.start
    if start is None:
        return "attached: decisions are logged, and knobs turn only where rules.autonomy says auto"
    if not start.label:
        return f"start {start.name}: {start.describe()}"
    if start.label.startswith("DRILL"):
        return start.label
    label = start.label.rstrip(". ")
    return f"DRILL {start.name.removeprefix('drill:')}: {label}. This was staged on purpose; no agent is told."


def command_text(command: OperatorCommand) -> str:
    """Describe a command: its action, its object and its reason."""
    about = [command.subject_id, command.actuator, command.agent, command.autonomy or ""]
    if command.value is not None:
        about.append(format_value(command.value))
    return " ".join(part for part in (command.action, *about, command.reason) if part)


def outcome(body: Outcome) -> str:
    """Describe the effect of a change on its target next to the forecast, or why there is no score."""
    subject = f"{body.actuator or 'clear harm'} on {body.target}"
    if not body.scored:
        return f"{subject} has no score: {body.reason}"
    pairs = (("gain", body.gain), ("forecast", body.forecast), ("noise", body.noise))
    figures = ", ".join(f"{name} {value:.3g}" for name, value in pairs if value is not None)
    moved = ", ".join(f"{line.agent} {line.before:.2f} → {line.after:.2f}" for line in body.lines if not line.shadow)
    return f"{subject}: {figures or 'no figures'}" + (f"; reputations {moved}" if moved else "")


def voted(agent: AgentView) -> str:
    """Describe the votes of an agent."""
    backed = f"voted for {counted(agent.backed, 'adopted decision')}"
    return f"{counted(agent.proposals, 'proposal')}, {counted(agent.against, 'objection')}, {backed}"


class Headless:
    """Prints the events of a run, using only the log.

    One line counts the stack's own agents when the first observation arrives. Later changes get one line each.
    """

    def __init__(self, out: Callable[[str], None], began: datetime, own_agents: Collection[str] = ()) -> None:
        self.out = out
        self.view = RunSummary()
        self.gap_finder = GapFinder()
        self._began = began
        self._printed_step = -1
        self._reminders = Reminders()
        self._own_agents = own_agents
        self._starting = 0  # own agents that joined, or reported that they cannot fire, and have no line yet
        self._repeated: dict[
            str, tuple[str, int]
        ] = {}  # knob → its last proposal that was not adopted, and repetitions
        self._unfit: dict[str, str] = {}  # agent → the printed reason why it cannot fire
        self._quarantined: list[str] = []
        self._stopped_agents = 0

    def replayed(self, event: Event) -> None:
        """Count an event of an earlier incarnation without printing it."""
        self._feed(event)

    def event(self, event: Event) -> None:
        before = dict(self.view.knobs)
        known = {name for name, agent in self.view.agents.items() if agent.live}
        self._feed(event)
        match event.body:
            case RunStarted() as body:
                self._printed_step = -1
                until = [f"{body.horizon.max_steps} steps"] if body.horizon.max_steps else []
                until += [f"{body.horizon.seconds:g} s"] if body.horizon.seconds else []
                knobs = ", ".join(f"{spec.name} {format_value(spec.value)}".strip(" –") for spec in body.actuators)
                self._say(event, f"learner  {body.recipe}, {' or '.join(until) or 'no end set'}; knobs: {knobs}")
            case Observation() as body:
                self._observation(event, body)
            case Decision() as body:
                self._decision(event, body, format_value(before.get(body.actuator, body.before)))
            case Receipt(decision_id="") as body:
                whose = " answered" if body.command and not body.command.startswith("local-") else ""
                self._say(event, f"receipt  {body.actuator}{whose} {body.status} at step {body.step}: {body.reason}")
            case Receipt() as body:
                why = f": {body.reason}" if body.reason else ""
                change = f"{format_value(body.before)} → {format_value(body.after)}"
                self._say(event, f"receipt  {body.actuator} {change} {body.status} at step {body.step}{why}")
            case AgentStatus() as body:
                self._status(event, body, event.author in known)
            case OperatorCommand() as body:
                who = "operator" if event.author == OPERATOR else f"operator {event.author}"
                self._say(event, f"{who}: {command_text(body)}")
            case OperatorKey() as body:
                self._say(event, f"operator {body.name}: the key {'counts' if body.key else 'counts no longer'}")
            case CommandAnswer() as body:
                verdict = "done" if body.done else "refused"
                self._say(event, f"answer   to {body.operator}: {body.action} {verdict}: {body.reason}")
            case Outcome() as body:
                self._say(event, f"outcome  {outcome(body)}")
            case _:
                self._announcement(event)

    def _announcement(self, event: Event) -> None:
        """Print other messages of the learner and of agents."""
        match event.body:
            case ActuatorAnnounced() as body:
                self._say(event, f"learner  {describe_actuator(body)}")
            case Alert() as body if self.view.alert is not None:
                self._say(event, f"alert    {event.author}: {alert_text(body)}")
            case PromptsInjected() as body:
                self._say(event, f"prompts  {describe_prompts(body)}")
            case RunEnded() as body:
                for actuator in list(self._repeated):
                    self._flush(event, actuator)
                detail = f": {body.detail}" if body.detail else ""
                self._say(event, f"learner  {body.reason} at step {body.step}{detail}")
            case _:
                pass

    def _decision(self, event: Event, body: Decision, before: str) -> None:
        """Print a decision. Repetitions of a proposal that is not adopted are only counted."""
        shown = verdict_text(body.verdict, body.reason)
        change = f"{body.actuator} {before} → {format_value(body.value)} {shown}"
        last, times = self._repeated.get(body.actuator, ("", 0))
        if change == last:
            self._repeated[body.actuator] = (change, times + 1)
            return
        self._flush(event, body.actuator)
        if body.verdict != "adopted":
            self._repeated[body.actuator] = (change, 0)
        self._say(event, f"decision {change}: {body.reason}")

    def _flush(self, event: Event, actuator: str) -> None:
        """Print how often the knob's last proposal was repeated."""
        change, times = self._repeated.pop(actuator, ("", 0))
        if times:
            self._say(event, f"decision {change} again, {counted(times, 'time')}")

    def _status(self, event: Event, body: AgentStatus, known: bool) -> None:
        verb = {"joined": "joined", "cannot_fire": "cannot fire", "left": "left"}.get(body.state, "")
        if body.state == "notice":
            self._say(event, f"notice   {event.author}: {body.reason}")
        if not verb or (body.state == "joined" and known):
            return  # agents join again when a run starts, and after each loss of the connection
        if body.state == "left" and body.reason == ASKED_TO_STOP and self.view.ended is not None:
            self._stopped_agents += 1
            return
        if body.state == "cannot_fire" and self._unfit.get(event.author) == body.reason:
            return
        self._unfit[event.author] = body.reason if body.state == "cannot_fire" else ""
        if body.state != "left" and event.author in self._own_agents and self._printed_step < 0:
            self._starting += 1
            return
        why = f": {body.reason}" if body.reason else ""
        self._say(event, f"agent    {event.author} {verb}{why}")

    def _feed(self, event: Event) -> None:
        self.view.feed(event)
        if isinstance(event.body, LearnerMessage):
            self.gap_finder.feed(event.body)

    def _observation(self, event: Event, body: Observation) -> None:
        if self._starting:
            self._starting = 0
            own = [agent for name, agent in self.view.agents.items() if name in self._own_agents and agent.live]
            unfit = sum(bool(agent.cannot_fire) for agent in own)
            more = f"; {unfit} cannot fire in this run, for reasons in the summary at the end" if unfit else ""
            self._say(event, f"{counted(len(own), 'agent')} joined{more}")
        for member in self.view.quarantined():
            if member not in self._quarantined:
                self._say(event, quarantine_text(member))
        self._quarantined = self.view.quarantined()
        for advice in self._reminders.select(self.view):
            time_left = format_remaining(advice, self.view.tick)
            self._say(
                event, f"advice   on {advice.actuator} lapses in {time_left}: `oven-controller approve {advice.id}`"
            )
        max_steps = self.view.max_steps
        every = max(MIN_INTERVAL_STEPS, max_steps // PROGRESS_LINES) if max_steps else INTERVAL_STEPS
        target = self.view.target()
        held_out = [target] if target in self.view.held_out() and target in body.metrics else []
        due = body.step // every != self._printed_step // every or self._printed_step < 0
        if not (due or held_out):
            return
        self._printed_step = body.step
        shown = [name for name in (training_signal(body.metrics), *held_out) if name]
        parts = [f"{name} {body.metrics[name]:.3f}" for name in shown]
        initial = {spec.name: spec.value for spec in self.view.specs}
        for name, value in self.view.knobs.items():
            if isinstance(value, float) and (name == "optimizer.lr_scale" or value != initial.get(name)):
                parts.append(f"{name.rsplit('.', 1)[-1]} {format_value(value)}")
        self._say(event, f"step {body.step:>4}{f'/{max_steps}' if max_steps else ''}  " + "  ".join(parts))

    def _say(self, event: Event, line: str) -> None:
        self.out(f"{(event.time - self._began).total_seconds():7.1f} s  {clean(line)}")

    def summary(self) -> list[str]:
        """Return the outcome of the run, one fact per line."""
        view = self.view
        how = view.ended.reason if view.ended else "stopped without a logged end"
        took = (view.last_time - self._began).total_seconds() if view.last_time else 0.0
        lines = [f"{how} at step {view.step} after {took:.1f} s; {view.observations} observations"]
        if name := view.target():
            at_start, at_end = view.first[name], view.metrics[name]
            if view.ended is None:
                lines.append(f"{name} {at_start:.3f} at the start, {at_end:.3f} last; its end was not logged")
            else:
                lines.append(f"{name} {at_start:.3f} → {at_end:.3f} ({at_end - at_start:+.3f})")
        applied = ", ".join(f"{count} {status}" for status, count in sorted(view.receipts.items()))
        counts = f", {len(view.advised)} advised and not approved" if view.advised else ""
        decided = f"decisions: {view.decision_counts()}{counts}"
        lines.append(f"{decided}; receipts: {applied or 'none'}")
        if view.outcomes:
            lines.append(f"scored {counted(view.outcomes, 'outcome')}")
        lines += self._agent_lines()
        lines += [f"alert of {name}, not cleared: {alert_text(alert)}" for name, alert in view.alerts.active()]
        lines += [quarantine_text(member) for member in view.quarantined()]
        if view.malformed:
            lines.append(f"skipped {counted(view.malformed, 'malformed message')}")
        if view.ended and view.ended.lockstep_timeouts:
            lines.append(f"{counted(view.ended.lockstep_timeouts, 'lockstep time-out')}: this run is not repeatable")
        if view.ended and view.ended.dropped_observations:
            lines.append(f"lost {counted(view.ended.dropped_observations, 'observation')} while the bus was away")
        return [clean(line) for line in lines]

    def _agent_lines(self) -> list[str]:
        """Return the agents' votes, one line for all idle agents, and one line per reason why agents cannot fire."""
        view, lines, silent = self.view, list[str](), list[str]()
        unfit: dict[str, list[str]] = {}
        for name, agent in sorted(view.agents.items()):
            fate = f"; shadow: {agent.shadow}" if agent.shadow else "; on probation" if agent.newcomer else ""
            if agent.cannot_fire:
                unfit.setdefault(agent.cannot_fire, []).append(name)
            if agent.proposals or agent.against or agent.backed or fate:
                lines.append(f"agent {name}: {voted(agent)}{fate}")
            elif not agent.cannot_fire:
                silent.append(name)
        lines += [f"cannot fire: {', '.join(names)}: {reason}" for reason, names in unfit.items()]
        if self._stopped_agents:
            lines.append(f"{counted(self._stopped_agents, 'agent')} stopped")
        if silent:
            lines.append(f"neither proposed nor objected: {', '.join(silent)}")
        return lines
