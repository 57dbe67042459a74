"""Summarise a run from its log, for `status` and the progress lines of `up`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from oven_core.protocol.actuators import BEST
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected, with_announced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.judge_spec import OFF, actuator_of
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
    Vote,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_core.protocol.rules import Autonomy
from oven_core.terminal_text import counted
from oven_runs.log.active_alerts import ActiveAlerts

PROGRESS_SUFFIXES = ("runtime", "_per_second", "_time", "epoch", "num_tokens")
"""Name suffixes of metrics about the speed and progress of an evaluation, not its result."""
Verdict: TypeAlias = Literal["adopted", "rejected", "advised"]
OBSERVE_MARKER = "; observe: would have "
"""Part of the reason of a proposal that passed the vote and was rejected only because autonomy is `observe`."""
_QUARANTINED = re.compile(r"committee/[^/]+/quarantined")
CONSTANT_AFTER = 3
"""Number of equal measurements after which a metric counts as constant."""


@dataclass
class AgentView:
    """An agent's state, with counts of its votes and decisions."""

    is_live: bool = False
    idle_reason: str = ""
    """The reason why it has nothing to do in this run, for example because a knob is missing; empty if it can vote."""
    failure_reason: str = ""
    """The error after which it stopped voting; empty if it did not fail."""
    needs: tuple[str, ...] = ()
    """Patterns of the metrics that it requires."""
    moves: tuple[str, ...] = ()
    """The actuators that it may propose to change."""
    shadow_reason: str = ""
    """The reason why its votes do not count; empty if they do."""
    last_tick: int = 0
    """Tick of the run at the agent's last message, or the last tick that the agent reported as done."""
    last_vote: Vote | None = None
    proposals: int = 0
    against: int = 0
    """Number of its votes against a proposal."""
    joined_as_shadow: bool = False
    backed: int = 0
    """Number of adopted decisions that it proposed or voted for."""
    is_newcomer: bool = False
    """Whether the agent was on probation at its last vote, so that the vote neither counted nor vetoed."""

    @property
    def is_awaited(self) -> bool:
        """Whether the mesh waits for its votes. It sends nothing while it has nothing to do, or after it failed."""
        return self.is_live and not (self.idle_reason or self.failure_reason)


@dataclass
class RunSummary:
    """The summary of a run. Pass the log's events to `feed` in order."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    seq: int = 0
    last_time: datetime | None = None
    tick: int = 0
    step: int = 0
    observations: int = 0
    progress: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    first_values: dict[str, float] = field(default_factory=dict)
    """Each metric's first value in this training."""
    unchanged_counts: dict[str, int] = field(default_factory=dict)
    """For each metric, the number of measurements with its first value; 0 once the value has changed."""
    knobs: dict[str, Value] = field(default_factory=dict)
    """Actuator → its current value."""
    changed_by: dict[str, dict[str, None]] = field(default_factory=dict)
    """Actuator → the agents that backed its applied changes, and "an operator" for commands, in order."""
    agents: dict[str, AgentView] = field(default_factory=dict)
    adopted: int = 0
    rejected: int = 0
    would_set: int = 0
    """Number of proposals that failed only because autonomy is `observe`. They are not part of `rejected`."""
    alerts: ActiveAlerts = field(default_factory=ActiveAlerts)
    alert: Alert | None = None
    """The alert that the last event raised or cleared; None if it did neither."""
    advised: dict[str, Decision] = field(default_factory=dict)
    """Actuator → advice that no operator has approved or vetoed yet. The advice may have lapsed."""
    autonomy: dict[str, Autonomy] = field(default_factory=dict)
    """Actuator → the level that an operator set. The key "" stands for all other actuators."""
    muted: dict[str, str] = field(default_factory=dict)
    """Agent → the operator who muted it."""
    commands: dict[str, tuple[str, OperatorCommand]] = field(default_factory=dict)
    """Commands without an answer: id → (operator, command)."""
    outcomes: int = 0
    """Number of scored outcomes."""
    receipts: dict[str, int] = field(default_factory=dict)
    """Status → number of receipts for decisions."""
    injected: int = 0
    """Number of prompts added to the training data."""
    evicted: int = 0
    """Number of added prompts that newer ones replaced."""
    judge_tokens: float = 0.0
    """Tokens that remote judges reported, including tokens for steps that a rollback discarded."""
    judge_usd: float = 0.0
    """Cost of judges whose model has a known price, in US dollars."""
    hold_reason: str = ""
    """The reason why the run is held; empty if it is not."""
    ended_with: str = ""
    """The weights that the run ended with, in words; empty if they are those of the last step, as usual."""
    malformed: int = 0
    _backers: dict[str, list[str]] = field(default_factory=dict)
    """Adopted decision → the agents that proposed or supported it, or "an operator"."""

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self.seq = event.seq
        self.last_time = event.time
        self.alert = self.alerts.feed(event)
        match event.body:
            case RunStarted() as body:
                self._start(body)
            case RunEnded() as body:
                self.ended, self.step, self.tick = body, body.step, max(self.tick, body.tick)
                self._add_metrics(body.metrics)
            case Observation() as body:
                self.tick, self.step, self.progress = max(self.tick, body.tick), body.step, body.progress
                self.observations += 1
                self.judge_tokens += body.metrics.get("committee/tokens", 0.0)
                self.judge_usd += body.metrics.get("committee/cost_usd", 0.0)
                self._add_metrics(body.metrics)
            case AgentStatus() as body:
                self._add_status(event.author, body)
            case Vote() as body:
                agent = self.agents.setdefault(event.author, AgentView(is_live=True))
                agent.last_vote, agent.last_tick = body, self.tick
                agent.proposals += body.stance == "propose"
                agent.against += body.stance == "against"
            case Decision() as body:
                self._add_decision(body)
            case Receipt() as body:
                self._add_receipt(body)
            case Outcome() as body:
                self.outcomes += body.scored
            case OperatorCommand() | CommandAnswer() as body:
                self._add_command(event.author, body)
            case Malformed():
                self.malformed += 1
            case ActuatorAnnounced() | PromptsInjected() as body:
                self._add_announcement(body)

    @property
    def specs(self) -> tuple[ActuatorSpec, ...]:
        """The actuators announced by the run."""
        return self.started.actuators if self.started else ()

    @property
    def max_steps(self) -> int | None:
        """Number of steps after which the run ends; None if it is unlimited or unknown."""
        return self.started.horizon.max_steps if self.started else None

    def quarantined(self) -> list[str]:
        """Return the committee members that are in quarantine but not muted."""
        metrics = [name for name, value in self.metrics.items() if value and _QUARANTINED.fullmatch(name)]
        members = [name.split("/")[1] for name in metrics]
        return [member for member in members if self.knobs.get(actuator_of(member)) != OFF]

    def decision_counts(self) -> str:
        """Return the number of decisions by verdict, in words."""
        return counts_text(self.adopted, self.rejected, self.would_set)

    def changed_knobs(self) -> list[tuple[str, Value]]:
        """Return the knobs whose value differs from the value at the run's start, with their current values."""
        initial = {spec.name: spec.value for spec in self.specs if spec.kind != "action"}
        return [(name, value) for name, value in self.knobs.items() if name in initial and value != initial[name]]

    def has_lapsed(self, decision: Decision) -> bool:
        """Whether advice is too old to be approved."""
        return self.tick > decision.expires_at_tick

    def _start(self, started: RunStarted) -> None:
        if self.started is not None and self.started.training != started.training:
            # The old values belong to other weights and data.
            self.metrics, self.first_values, self.unchanged_counts = {}, {}, {}
        self.started, self.ended, self.hold_reason, self.ended_with = started, None, "", ""
        self.step, self.tick = started.step, max(self.tick, started.tick)
        self.knobs = {spec.name: spec.value for spec in started.actuators}
        self._update_shadows()

    def _add_announcement(self, body: ActuatorAnnounced | PromptsInjected) -> None:
        if isinstance(body, PromptsInjected):
            self.injected += len(body.hashes)
            self.evicted += body.evicted
            return
        if self.started is None:
            return
        started = with_announced(self.started, body)
        if started is not self.started:
            self.started, self.knobs = started, {**self.knobs, body.actuator.name: body.actuator.value}

    def _add_status(self, author: str, status: AgentStatus) -> None:
        agent = self.agents.setdefault(author, AgentView())
        agent.is_live, agent.last_tick = status.state != "left", max(self.tick, status.tick)
        if status.state == "cannot_fire":
            agent.idle_reason = status.reason or "it gave no reason"
        elif status.state == "failed":
            agent.failure_reason = status.reason or "it gave no reason"
        elif status.state == "joined":
            agent.idle_reason = agent.failure_reason = ""
            agent.needs, agent.moves, agent.joined_as_shadow = status.needs, status.moves, status.shadow
            self._update_shadows()

    def _add_decision(self, decision: Decision) -> None:
        self.adopted += decision.verdict == "adopted"
        verdict = verdict_text(decision.verdict, decision.reason)
        self.would_set += verdict == "would set"
        self.rejected += verdict == "rejected"
        if decision.verdict != "rejected":  # a decision that passed replaces older advice
            self.advised.pop(decision.actuator, None)
        if decision.verdict == "advised":
            self.advised[decision.actuator] = decision
        for line in decision.tally:
            agent = self.agents.setdefault(line.agent, AgentView())
            if line.stance != "silent":
                agent.is_newcomer = line.newcomer
        if decision.verdict == "adopted":
            lines = [line for line in decision.tally if line.stance in ("propose", "for") and not line.shadow]
            for line in lines:
                self.agents[line.agent].backed += 1
            # Proposers come first.
            lines.sort(key=lambda line: line.stance != "propose")
            self._backers[decision.id] = ["an operator"] if decision.command else [line.agent for line in lines]

    def _add_receipt(self, receipt: Receipt) -> None:
        if not receipt.decision_id:
            self._add_other_receipt(receipt)
            return
        self.receipts[receipt.status] = self.receipts.get(receipt.status, 0) + 1
        if receipt.status in ("applied", "noop"):
            self.knobs[receipt.actuator] = receipt.after
        if receipt.status == "applied":
            backers = self._backers.pop(receipt.decision_id, ())
            self.changed_by.setdefault(receipt.actuator, {}).update(dict.fromkeys(backers))
        if receipt.actuator == "run.hold" and receipt.status == "applied":
            self.hold_reason = "a decision holds the run"

    def _add_other_receipt(self, receipt: Receipt) -> None:
        """Handle a receipt without a decision: for a command, or from the learner about its last weights or a value
        that changed by itself, such as a warm-up that is complete."""
        if receipt.after is not None and receipt.status in ("applied", "noop"):
            self.knobs[receipt.actuator] = receipt.after
        if receipt.actuator == BEST:
            self.ended_with = receipt.reason
        operator, command = self.commands.pop(receipt.command, ("", None))
        if receipt.actuator != "run.hold" or receipt.status != "applied":
            return
        if command is not None and command.action == "resume":
            self.hold_reason = ""
        else:
            self.hold_reason = f"{operator}: {receipt.reason}" if operator else receipt.reason

    def _add_command(self, author: str, body: OperatorCommand | CommandAnswer) -> None:
        if isinstance(body, CommandAnswer):
            self._add_answer(body)
        else:
            self.commands.setdefault(body.id, (author, body))

    def _add_answer(self, answer: CommandAnswer) -> None:
        _, command = self.commands.pop(answer.command, ("", None))
        if command is None or not answer.done:
            return
        if command.action == "autonomy" and command.autonomy is not None:
            self.autonomy = {**(self.autonomy if command.actuator else {}), command.actuator: command.autonomy}
        elif command.action == "mute":
            self.muted[command.agent] = answer.operator
        elif command.action == "unmute":
            self.muted.pop(command.agent, None)
        elif command.action == "veto" and not answer.decision:  # a veto that reverts no decision may remove advice
            vetoed = command.subject_id or command.actuator
            advice = self.advised.items()
            self.advised = {name: decision for name, decision in advice if vetoed not in (decision.id, name)}
        self._update_shadows()

    def _update_shadows(self) -> None:
        shadows_by_rule = self.started.rules.shadow if self.started else ()
        for name, agent in self.agents.items():
            if name in self.muted:
                agent.shadow_reason = f"muted by {self.muted[name]}"
            elif name in shadows_by_rule:
                agent.shadow_reason = "rules.shadow"
            else:
                agent.shadow_reason = "requested by the agent" if agent.joined_as_shadow else ""

    def _add_metrics(self, metrics: dict[str, float]) -> None:
        self.metrics.update(metrics)
        for name, value in metrics.items():
            if self.first_values.setdefault(name, value) != value:
                self.unchanged_counts[name] = 0
            elif self.unchanged_counts.get(name) != 0:
                self.unchanged_counts[name] = self.unchanged_counts.get(name, 0) + 1

    def idle_agents(self) -> list[str]:
        """Return the names of the agents that have nothing to do in this run, sorted."""
        return sorted(name for name, agent in self.agents.items() if agent.idle_reason)

    def held_out(self) -> list[str]:
        """Return the announced held-out metrics. If there are none, return the results of evaluations. Metrics that
        should go up or down come first, and totals come before their parts: `eval/accuracy`, `eval/accuracy/len3`."""
        declared = [spec for spec in self.started.metrics if spec.held_out] if self.started else []
        if declared:
            ordered = sorted(declared, key=lambda spec: (spec.better == "neither", spec.name.count("/")))
            return [spec.name for spec in ordered]
        measured = [name for name in self.metrics if name.startswith("eval/") and not name.endswith(PROGRESS_SUFFIXES)]
        return sorted(measured, key=lambda name: name.count("/"))

    def target(self) -> str | None:
        """Return the metric that shows how well the run is doing, or None if none has been measured yet. This is the
        first held-out metric, or the training signal if there is no held-out metric. A metric that has been constant
        for CONSTANT_AFTER measurements is skipped if another one changes."""
        held_out = [name for name in self.held_out() if name in self.metrics]
        signal = training_signal(self.metrics)
        candidates = [*held_out, *([signal] if signal else [])]
        changing = (name for name in candidates if self.unchanged_counts[name] < CONSTANT_AFTER)
        return next(changing, candidates[0] if candidates else None)


def verdict_text(verdict: Verdict, reason: str) -> Verdict | Literal["would set"]:
    """Return the verdict to display: "would set" if a proposal was rejected only because autonomy is `observe`."""
    # The prefix makes the marker match at the start of the reason as well.
    return "would set" if verdict == "rejected" and OBSERVE_MARKER in f"; {reason}" else verdict


def counts_text(adopted: int, rejected: int, would_set: int) -> str:
    """Return the number of decisions by verdict, in words."""
    return f"{adopted} adopted, {rejected} rejected" + (f", {would_set} would be set (observe)" if would_set else "")


def idle_text(count: int, run: str) -> str:
    """Return how many agents have nothing to do, with the command that lists them."""
    have = "has" if count == 1 else "have"
    return f"{counted(count, 'agent')} {have} nothing to do in this run: `oven-controller agent list --run {run}`"


def quarantine_text(member: str) -> str:
    """Return the cause of a judge's quarantine and the remedy."""
    return (
        f"judge {member} is in quarantine: it scored known answers wrongly twice in a row; wait, or use another model: "
        f"`oven-controller judge swap {member}`"
    )


def training_signal(metrics: Collection[str]) -> str | None:
    """Return the metric that the training optimises: the reward, or the loss if there is no reward."""
    for objective in ("reward", "loss"):
        candidates = [name for name in metrics if objective in name.split("/")[-1] and not name.startswith("eval/")]
        exact_matches = [name for name in candidates if name.split("/")[-1] == objective]
        if candidates:
            return (exact_matches or candidates)[0]
    return None


def format_value(value: Value) -> str:
    """Format a knob's value for display."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return " ".join(f"{name} {share:.2g}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
