"""A growing log with a mesh that reads it. The mesh's tests are written with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from oven_core.mesh.outputs import Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.evidence import KINDS, Signal
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    Horizon,
    Message,
    MetricSpec,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Value,
    Vote,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_core.protocol.rules import Rules

RUN = "r"
LR = "optimizer.lr_scale"
NOON = datetime(2026, 1, 1, tzinfo=UTC)

SPECS = (
    ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0),
    ActuatorSpec(name="grad.clip", kind="scalar", low=0, high=10, value=1.0, risky=True),
    ActuatorSpec(name="teacher.active", kind="choice", choices=("none", "small", "big"), value="none"),
    ActuatorSpec(
        name="data.mixture",
        kind="simplex",
        choices=("web", "code", "math"),
        value={"web": 0.5, "code": 0.3, "math": 0.2},
        moves_own_metric=True,
    ),
    ActuatorSpec(name="run.rollback", kind="action", effect="moves_weights"),
    ActuatorSpec(name="run.hold", kind="action", effect="ends_or_holds"),
    ActuatorSpec(name="run.evaluate", kind="action", effect="measures"),
)
METRICS = (MetricSpec(name="loss", better="down"), MetricSpec(name="eval/loss", better="down", held_out=True))
MEASURED_KINDS = [kind for kind in KINDS if kind != "graph"]
FREE: dict[str, Any] = {"newcomers": "full", "harm_charge": 0.0, "reversals": 10**6}
"""Rules that leave trust and rate limits out, for tests of everything else; theirs start with the defaults."""
MOVES = tuple(spec.name for spec in SPECS)


def event(seq: int, subject: str, body: Message | bytes, stored: datetime = NOON) -> Event:
    return Event.read(seq, subject, body if isinstance(body, bytes) else body.wire(), stored)


class Log:
    """Create a log. `echo` appends the mesh's outputs like the service. Sequences have gaps to insert into."""

    def __init__(self, echo: bool = True, stride: int = 10) -> None:
        self.mesh = Mesh(RUN)
        self.echo, self.stride = echo, stride
        self.events: list[Event] = []
        self.outputs: list[Output] = []
        self.incarnation, self.n, self.seq = 1, 0, 0
        self.step = 0  # of the learner: a rollback takes it back
        self.now, self.tick_s = NOON, 0.0  # when the log stores what comes next, and how long a step takes

    @classmethod
    def running(cls, *agents: str, alone: tuple[str, ...] = (), echo: bool = True, **rules: Any) -> Log:
        """Return the log of a started run with these agents, which decide alone on the actuators `alone`."""
        log = cls(echo)
        if alone:
            rules["alone"] = {**rules.get("alone", {}), **dict.fromkeys(agents, alone)}
        log.start(**rules)
        for agent in agents:
            log.join(agent)
        return log

    def put(self, subject: str, body: Message | bytes) -> list[Output]:
        self.seq += self.stride
        entry = event(self.seq, f"oven.{RUN}.{subject}", body, self.now)
        self.events.append(entry)
        emitted = self.mesh.step(entry)
        self.outputs += emitted
        if self.echo:
            for output in emitted:
                self.put(output.subject.split(".", 2)[2], output.message)
        return emitted

    def stamp(self) -> dict[str, int]:
        self.n += 1
        return {"incarnation": self.incarnation, "n": self.n - 1}

    def start(
        self,
        specs: tuple[ActuatorSpec, ...] = SPECS,
        tick: int = 0,
        lockstep: bool = False,
        reputations: dict[str, float] | None = None,
        metrics: tuple[MetricSpec, ...] = METRICS,
        training: str = "1",
        max_steps: int | None = None,
        **rules: Any,
    ) -> list[Output]:
        message = RunStarted(
            **self.stamp(),
            recipe="grpo",
            training=training,
            tick=tick,
            actuators=specs,
            metrics=metrics,
            rules=Rules(**{**FREE, **rules}),
            lockstep=lockstep,
            reputations=reputations or {},
            horizon=Horizon(max_steps=max_steps),
        )
        return self.put("run", message)

    def restart(self, **kwargs: Any) -> list[Output]:
        self.incarnation, self.n = self.incarnation + 1, 0
        return self.start(**kwargs)

    def end(self) -> list[Output]:
        return self.put("run", RunEnded(**self.stamp(), reason="completed", tick=self.mesh.state.tick, step=0))

    def tick(self, count: int = 1, /, **metrics: float) -> list[Output]:
        emitted: list[Output] = []
        for _ in range(count):
            tick, self.step = self.mesh.state.tick + 1, self.step + 1
            self.now += timedelta(seconds=self.tick_s)
            message = Observation(
                **self.stamp(), tick=tick, step=self.step, progress=0.0, metrics=metrics or {"loss": 1.0}
            )
            emitted += self.put("observation", message)
        return emitted

    def join(self, agent: str, moves: tuple[str, ...] = MOVES, shadow: bool = False) -> list[Output]:
        return self.put(f"agent.{agent}", AgentStatus(state="joined", moves=moves, shadow=shadow))

    def status(self, agent: str, state: Any, tick: int = 0, seen: str = "", reason: str = "") -> list[Output]:
        return self.put(f"agent.{agent}", AgentStatus(state=state, tick=tick, seen=seen, reason=reason))

    def done(self, agent: str, seen: str = "") -> list[Output]:
        return self.status(agent, "done", tick=self.mesh.state.tick, seen=seen)

    def vote(
        self,
        agent: str,
        stance: Literal["propose", "for", "against", "abstain"],
        value: Value = None,
        actuator: str = LR,
        confidence: float = 0.6,
        ballot: str = "",
        rationale: str = "",
        evidence: tuple[str, ...] | None = None,
        **forecast: Any,
    ) -> list[Output]:
        """Append a vote. Without `evidence`, each agent has another kind of evidence, in the order of joining."""
        if evidence is None:
            names = list(self.mesh.state.agents)
            kind = MEASURED_KINDS[names.index(agent) % len(MEASURED_KINDS)] if agent in names else "loss"
            evidence = (Signal(kind, (f"metric of {agent}",)).entry,)
        message = Vote(
            actuator=actuator,
            ballot=ballot,
            stance=stance,
            value=value,
            tick=self.mesh.state.tick,
            confidence=confidence,
            rationale=rationale,
            evidence=evidence,
            **forecast,
        )
        return self.put(f"vote.{agent}", message)

    def propose(
        self, agent: str, value: Value, actuator: str = LR, confidence: float = 0.6, **more: Any
    ) -> list[Output]:
        return self.vote(agent, "propose", value, actuator, confidence, **more)

    def receipt(self, decision: Decision, status: Any = "applied", after: Value = None) -> list[Output]:
        before, after = decision.before, decision.value if after is None else after
        if decision.actuator == "run.rollback" and status == "applied":
            requested_step = self.step if after is None else after
            before, self.step = (
                float(self.step),
                int(min(requested_step, self.step)) if isinstance(requested_step, int | float) else 0,
            )
            after = float(self.step)
        message = Receipt(
            **self.stamp(),
            decision_id=decision.id,
            actuator=decision.actuator,
            status=status,
            before=before,
            after=after,
            tick=self.mesh.state.tick,
            step=0,
        )
        return self.put("receipt", message)

    def operator(self, command_id: str, action: Any, by: str = "ann", **fields: Any) -> list[Output]:
        return self.put(f"operator.{by}", OperatorCommand(id=command_id, action=action, **fields))

    def obeyed(self, command_id: str, actuator: str = "run.hold", status: Any = "applied") -> list[Output]:
        """Append the learner's receipt of a hold, a resume or a stop."""
        tick = self.mesh.state.tick
        message = Receipt(
            **self.stamp(), command=command_id, actuator=actuator, status=status, tick=tick, step=0, reason="so"
        )
        return self.put("receipt", message)

    @property
    def answers(self) -> list[CommandAnswer]:
        return [output.message for output in self.outputs if isinstance(output.message, CommandAnswer)]

    @property
    def decisions(self) -> list[Decision]:
        return [output.message for output in self.outputs if isinstance(output.message, Decision)]

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    @property
    def verdict(self) -> str:
        return self.last.verdict

    @property
    def outcomes(self) -> list[Outcome]:
        return [output.message for output in self.outputs if isinstance(output.message, Outcome)]

    @property
    def ballots(self) -> list[BallotOpened]:
        return [output.message for output in self.outputs if isinstance(output.message, BallotOpened)]

    @property
    def closed_ticks(self) -> list[int]:
        return [output.message.tick for output in self.outputs if isinstance(output.message, StepClosed)]
