"""What a run looks like so far: a fold over its log, without I/O. The headless lines and `status` are drawn from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from oven_controller.events import Event
from oven_controller.messages import (
    AgentStatus,
    Decision,
    Observation,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
    Vote,
)
from oven_controller.wire import Malformed


@dataclass
class AgentView:
    live: bool = False
    cannot_fire: str = ""
    heard_tick: int = 0
    """The run's tick when it last said something."""
    last_vote: Vote | None = None
    proposals: int = 0
    against: int = 0
    backed: int = 0
    """Adopted decisions that it proposed or was for."""


@dataclass
class RunView:
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
    held_out_start: dict[str, float] = field(default_factory=dict)
    knobs: dict[str, Value] = field(default_factory=dict)
    agents: dict[str, AgentView] = field(default_factory=dict)
    adopted: int = 0
    rejected: int = 0
    receipts: dict[str, int] = field(default_factory=dict)
    held: str = ""
    """Why the run is held; empty while it is not."""
    malformed: int = 0

    def feed(self, event: Event) -> None:
        self.seq = event.seq
        self.last_time = event.time
        match event.body:
            case RunStarted() as body:
                self.started, self.ended, self.held = body, None, ""
                self.step, self.tick = body.step, max(self.tick, body.tick)
                self.knobs = {spec.name: spec.value for spec in body.actuators}
            case RunEnded() as body:
                self.ended, self.step, self.tick = body, body.step, max(self.tick, body.tick)
                self._measured(body.metrics)
            case Observation() as body:
                self.tick, self.step, self.progress = max(self.tick, body.tick), body.step, body.progress
                self.observations += 1
                self._measured(body.metrics)
            case AgentStatus() as body:
                agent = self.agents.setdefault(event.author, AgentView())
                agent.live, agent.heard_tick = body.state != "left", self.tick
                if body.state == "cannot_fire":
                    agent.cannot_fire = body.reason
                elif body.state == "joined":
                    agent.cannot_fire = ""
            case Vote() as body:
                agent = self.agents.setdefault(event.author, AgentView(live=True))
                agent.last_vote, agent.heard_tick = body, self.tick
                agent.proposals += body.stance == "propose"
                agent.against += body.stance == "against"
            case Decision() as body:
                self.adopted += body.verdict == "adopted"
                self.rejected += body.verdict == "rejected"
                for line in body.tally if body.verdict == "adopted" else ():
                    self.agents.setdefault(line.agent, AgentView()).backed += line.stance in ("propose", "for")
            case Receipt() as body:
                self.receipts[body.status] = self.receipts.get(body.status, 0) + 1
                if body.status in ("applied", "noop"):
                    self.knobs[body.actuator] = body.after
                if body.actuator == "run.hold" and body.status == "applied":
                    self.held = "a decision holds the run"
            case OperatorCommand() as body:
                if body.action == "hold":
                    self.held = f"{event.author}: {body.reason}" if body.reason else f"{event.author} holds it"
                elif body.action == "resume":
                    self.held = ""
            case Malformed():
                self.malformed += 1
            case _:
                pass

    def _measured(self, metrics: dict[str, float]) -> None:
        self.metrics.update(metrics)
        for name in self.held_out():
            if name in metrics:
                self.held_out_start.setdefault(name, metrics[name])

    def held_out(self) -> list[str]:
        """Held-out metrics, the whole before its parts: `eval/accuracy` before `eval/accuracy/len3`."""
        declared = [spec.name for spec in self.started.metrics if spec.held_out] if self.started else []
        return sorted(
            declared or [name for name in self.metrics if name.startswith("eval/")], key=lambda n: n.count("/")
        )


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
