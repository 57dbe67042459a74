"""Summary of a run so far: a pure fold over its log, from which `status` and `up`'s lines are drawn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from oven_core.protocol.actuator_names import BEST
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected, with_announced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
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
from oven_runs.log.standing_alerts import StandingAlerts

OF_SPEED = ("runtime", "_per_second", "_time", "epoch", "num_tokens")
"""How the names end of what an evaluation says of itself."""
CONSTANT = 3
"""Equal measurements after which a metric says nothing."""


@dataclass
class AgentView:
    live: bool = False
    cannot_fire: str = ""
    shadow: str = ""
    """Why its votes do not count; empty where they do."""
    heard_tick: int = 0
    """The run's tick when it last said something."""
    last_vote: Vote | None = None
    proposals: int = 0
    against: int = 0
    own_shadow: bool = False
    """It joined as a shadow."""
    backed: int = 0
    """Adopted decisions that it proposed or was for."""
    newcomer: bool = False
    """On probation where it last voted: its votes carry nothing and veto nothing."""


@dataclass
class RunSummary:
    """Feed it the log's events in order."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    seq: int = 0
    last_time: datetime | None = None
    tick: int = 0
    step: int = 0
    observations: int = 0
    progress: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    """Each metric's first value in this training."""
    still: dict[str, int] = field(default_factory=dict)
    """How often each metric was measured while it kept that value; 0 when it has had another one."""
    knobs: dict[str, Value] = field(default_factory=dict)
    agents: dict[str, AgentView] = field(default_factory=dict)
    adopted: int = 0
    rejected: int = 0
    alerts: StandingAlerts = field(default_factory=StandingAlerts)
    alert: Alert | None = None
    """What the last event raised or cleared; None where it did neither."""
    advised: dict[str, Decision] = field(default_factory=dict)
    """By actuator: what a person may still approve, if it has not lapsed."""
    autonomy: dict[str, Autonomy] = field(default_factory=dict)
    """What operators set, by actuator; "" for every other one."""
    muted: dict[str, str] = field(default_factory=dict)
    """Agent → the operator who muted it."""
    commands: dict[str, tuple[str, OperatorCommand]] = field(default_factory=dict)
    """Those that wait for their answer: id → (operator, command)."""
    outcomes: int = 0
    """Those that say something."""
    receipts: dict[str, int] = field(default_factory=dict)
    injected: int = 0
    """Prompts that were added to those that training draws."""
    evicted: int = 0
    """Of those: prompts that had to make room."""
    judge_tokens: float = 0.0
    """That remote judges took, by their own account; those of steps that a rollback threw away among them."""
    judge_usd: float = 0.0
    """US dollars of those whose price is known."""
    held: str = ""
    """Why the run is held; empty while it is not."""
    ended_with: str = ""
    """Which weights it ended with, in words; empty where those are the last and nothing else was asked for."""
    malformed: int = 0

    def feed(self, event: Event) -> None:
        self.seq = event.seq
        self.last_time = event.time
        self.alert = self.alerts.feed(event)
        match event.body:
            case RunStarted() as body:
                self._start(body)
            case RunEnded() as body:
                self.ended, self.step, self.tick = body, body.step, max(self.tick, body.tick)
                self._measured(body.metrics)
            case Observation() as body:
                self.tick, self.step, self.progress = max(self.tick, body.tick), body.step, body.progress
                self.observations += 1
                self.judge_tokens += body.metrics.get("committee/tokens", 0.0)
                self.judge_usd += body.metrics.get("committee/cost_usd", 0.0)
                self._measured(body.metrics)
            case AgentStatus() as body:
                self._take_status(event.author, body)
            case Vote() as body:
                agent = self.agents.setdefault(event.author, AgentView(live=True))
                agent.last_vote, agent.heard_tick = body, self.tick
                agent.proposals += body.stance == "propose"
                agent.against += body.stance == "against"
            case Decision() as body:
                self._take_decision(body)
            case Receipt() as body:
                self._take_receipt(body)
            case Outcome() as body:
                self.outcomes += body.scored
            case OperatorCommand() | CommandAnswer() as body:
                self._take_command(event.author, body)
            case Malformed():
                self.malformed += 1
            case ActuatorAnnounced() | PromptsInjected() as body:
                self._announced(body)
            case _:
                pass

    def lapsed(self, decision: Decision) -> bool:
        """Whether advice came too long ago to be approved."""
        return self.tick > decision.expires_at_tick

    def _start(self, started: RunStarted) -> None:
        if self.started is not None and self.started.training != started.training:
            self.metrics, self.first, self.still = {}, {}, {}  # of other weights and other data
        self.started, self.ended, self.held, self.ended_with = started, None, "", ""
        self.step, self.tick = started.step, max(self.tick, started.tick)
        self.knobs = {spec.name: spec.value for spec in started.actuators}
        self._shadows()

    def _announced(self, said: ActuatorAnnounced | PromptsInjected) -> None:
        if isinstance(said, PromptsInjected):
            self.injected += len(said.hashes)
            self.evicted += said.evicted
            return
        if self.started is None:
            return
        started = with_announced(self.started, said)
        if started is not self.started:
            self.started, self.knobs = started, {**self.knobs, said.actuator.name: said.actuator.value}

    def _take_status(self, author: str, status: AgentStatus) -> None:
        agent = self.agents.setdefault(author, AgentView())
        agent.live, agent.heard_tick = status.state != "left", self.tick
        if status.state == "cannot_fire":
            agent.cannot_fire = status.reason
        elif status.state == "joined":
            agent.cannot_fire, agent.own_shadow = "", status.shadow
            self._shadows()

    def _take_decision(self, decision: Decision) -> None:
        self.adopted += decision.verdict == "adopted"
        self.rejected += decision.verdict == "rejected"
        if decision.verdict != "rejected":  # whatever passed takes the place of older advice
            self.advised.pop(decision.actuator, None)
        if decision.verdict == "advised":
            self.advised[decision.actuator] = decision
        for line in decision.tally:
            agent = self.agents.setdefault(line.agent, AgentView())
            if line.stance != "silent":
                agent.newcomer = line.newcomer
        if decision.verdict == "adopted":
            for line in decision.tally:
                self.agents[line.agent].backed += line.stance in ("propose", "for") and not line.shadow

    def _take_receipt(self, receipt: Receipt) -> None:
        if not receipt.decision_id:
            self._answered(receipt)
            return
        self.receipts[receipt.status] = self.receipts.get(receipt.status, 0) + 1
        if receipt.status in ("applied", "noop"):
            self.knobs[receipt.actuator] = receipt.after
        if receipt.actuator == "run.hold" and receipt.status == "applied":
            self.held = "a decision holds the run"

    def _answered(self, receipt: Receipt) -> None:
        """The learner's word on a hold, a resume, a stop, or the weights that it ended with; its own have no operator
        behind them."""
        if receipt.actuator == BEST:
            self.ended_with = receipt.reason
        name, command = self.commands.pop(receipt.command, ("", None))
        if receipt.actuator != "run.hold" or receipt.status != "applied":
            return
        if command is not None and command.action == "resume":
            self.held = ""
        else:
            self.held = f"{name}: {receipt.reason}" if name else receipt.reason

    def _take_command(self, author: str, body: OperatorCommand | CommandAnswer) -> None:
        if isinstance(body, CommandAnswer):
            self._take_answer(body)
        else:
            self.commands.setdefault(body.id, (author, body))

    def _take_answer(self, answer: CommandAnswer) -> None:
        _, command = self.commands.pop(answer.command, ("", None))
        if command is None or not answer.done:
            return
        if command.action == "autonomy" and command.autonomy is not None:
            self.autonomy = {**(self.autonomy if command.actuator else {}), command.actuator: command.autonomy}
        elif command.action == "mute":
            self.muted[command.agent] = answer.operator
        elif command.action == "unmute":
            self.muted.pop(command.agent, None)
        elif command.action == "veto":
            kept, vetoed = self.advised.items(), command.subject_id or command.actuator
            self.advised = {a: d for a, d in kept if answer.decision or vetoed not in (d.id, a)}
        self._shadows()

    def _shadows(self) -> None:
        ruled = self.started.rules.shadow if self.started else ()
        for name, agent in self.agents.items():
            muted = f"muted by {self.muted[name]}" if name in self.muted else ""
            agent.shadow = muted or ("rules.shadow" if name in ruled else "by its own word" if agent.own_shadow else "")

    def _measured(self, metrics: dict[str, float]) -> None:
        self.metrics.update(metrics)
        for name, value in metrics.items():
            if self.first.setdefault(name, value) != value:
                self.still[name] = 0
            elif self.still.get(name) != 0:
                self.still[name] = self.still.get(name, 0) + 1

    def held_out(self) -> list[str]:
        """Held-out metrics, those with a direction first, and the whole before its parts: `eval/accuracy` before
        `eval/accuracy/len3`. Where none is announced, what an evaluation measured beside its own speed."""
        declared = [spec for spec in self.started.metrics if spec.held_out] if self.started else []
        if declared:
            ordered = sorted(declared, key=lambda spec: (spec.better == "neither", spec.name.count("/")))
            return [spec.name for spec in ordered]
        measured = [name for name in self.metrics if name.startswith("eval/") and not name.endswith(OF_SPEED)]
        return sorted(measured, key=lambda name: name.count("/"))

    def target(self) -> str | None:
        """The metric that says how the run is doing: the first held-out one, else what the training itself optimises;
        and none that CONSTANT measurements found to stand still, while another moves. None before any was measured."""
        held_out = [name for name in self.held_out() if name in self.metrics]
        signal = training_signal(self.metrics)
        wanted = [*held_out, *([signal] if signal else [])]
        return next((name for name in wanted if self.still[name] < CONSTANT), wanted[0] if wanted else None)


def training_signal(metrics: Collection[str]) -> str | None:
    """The name of what the training itself optimises, among the run's metrics: the reward, else the loss."""
    for wanted in ("reward", "loss"):
        near = [name for name in metrics if wanted in name.split("/")[-1] and not name.startswith("eval/")]
        exact = [name for name in near if name.split("/")[-1] == wanted]
        if exact or near:
            return (exact or near)[0]
    return None


def text(value: Value) -> str:
    """A knob's value for people."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return " ".join(f"{name} {share:.2g}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
