"""The mesh's state of a run: actuators and their effective values, agents, clock, decisions in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import Fault, shaped, show
from oven_core.mesh.change_requirements import change
from oven_core.mesh.observation_pace import ObservationPace
from oven_core.mesh.rollback_limits import RollbackLimits
from oven_core.mesh.trust import Standing, Trust
from oven_core.mesh.vote_limits import VoteLimits
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    LearnerMessage,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    Value,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Autonomy, Rules


@dataclass(slots=True)
class Agent:
    """An agent that joined, as far as the mesh cares."""

    needs: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    speciality: tuple[str, ...] = ()
    version: str = ""
    shadow: bool = False  # by its own word
    live: bool = True
    cannot_fire: str = ""
    last_tick: int = 0
    done_tick: int = -1
    seen: str = ""


def held_out(metrics: Iterable[MetricSpec]) -> MetricSpec | None:
    """The held-out metric that stands for the whole: the fewest parts in its name, then the first announced."""
    declared = [metric for metric in metrics if metric.held_out and metric.better != "neither"]
    return min(declared, key=lambda metric: metric.name.count("/"), default=None)


@dataclass(frozen=True, slots=True)
class InFlight:
    """An adopted decision that has no receipt yet."""

    decision: Decision
    change: str
    """Spelt as in `needs`: "name:up"."""


class Numbers:
    """A set of whole numbers kept as ranges: the learner's come in order, so a long run costs a handful of ints."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def add(self, n: int) -> bool:
        """Whether `n` is new."""
        at = bisect_right(self._starts, n)  # the ranges before `at` start at or below n
        if at and n < self._ends[at - 1]:
            return False
        joins_left = at > 0 and self._ends[at - 1] == n
        joins_right = at < len(self._starts) and self._starts[at] == n + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            self._starts.pop(at)
        elif joins_left:
            self._ends[at - 1] = n + 1
        elif joins_right:
            self._starts[at] = n
        else:
            self._starts.insert(at, n)
            self._ends.insert(at, n + 1)
        return True


@dataclass
class State:
    """The run as the inputs so far tell it. Only `Mesh.step` changes it."""

    tick: int = 0
    started: bool = False
    ended: bool = False
    observed: bool = False  # an observation came: lockstep has a tick to close
    closed_tick: int = -1  # the newest tick that lockstep has closed
    rules: Rules = field(default_factory=Rules)
    lockstep: bool = False
    mesh_code: str = ""
    training: str = ""
    max_steps: int | None = None
    step: int = 0  # of the newest observation
    reputations: dict[str, float] = field(default_factory=dict)
    specs: dict[str, ActuatorSpec] = field(default_factory=dict)
    metrics: tuple[MetricSpec, ...] = ()
    effective: dict[str, Value] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    adopted: int = 0  # against the budget: what an operator set is not in it
    decided_tick: dict[str, int] = field(default_factory=dict)  # actuator → since when it cools down
    advised: dict[str, Decision] = field(default_factory=dict)  # actuator → its newest, as long as it may be approved
    closed_because: dict[str, str] = field(default_factory=dict)  # decision → why nothing is left to approve or veto
    autonomy: dict[str, Autonomy] = field(default_factory=dict)  # what operators set; "" for every other actuator
    muted: set[str] = field(default_factory=set)
    incarnation: int = 0
    refused: set[tuple[str, str, str]] = field(default_factory=set)
    commands: dict[str, tuple[str, OperatorCommand]] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    rollback_limits: RollbackLimits = field(default_factory=RollbackLimits)
    trust: Trust = field(default_factory=Trust)
    rate_limits: VoteLimits = field(default_factory=VoteLimits)
    pace: ObservationPace = field(default_factory=ObservationPace)
    turned_down: dict[str, list[str]] = field(default_factory=dict)  # actuator → why the learner rejected it, in a row
    _numbers: Numbers = field(default_factory=Numbers)

    def is_new(self, message: LearnerMessage) -> bool:
        """Whether a learner's message counts: not a repeat, and of the incarnation that runs now.

        A message of a dead incarnation tells of a process that is gone, settings included.
        """
        if isinstance(message, RunStarted) and message.incarnation > self.incarnation:
            self.incarnation, self._numbers = message.incarnation, Numbers()
        elif message.incarnation != self.incarnation:
            self.counters["learner.other_incarnation"] += 1
            return False
        if not self._numbers.add(message.n):
            self.counters["learner.repeated"] += 1
            return False
        return True

    def start(self, message: RunStarted) -> None:
        """A new incarnation: its settings replace the old ones. Agents, budget, what is in flight or advised, and the
        operators' word (autonomy, who is muted) stay. Another training of the same script has other weights and other
        data: budget, cool-downs, advice and rollbacks of the one before are none of its own."""
        if self.started and message.training != self.training:
            self.rollback_limits, self.adopted, self.decided_tick, self.rate_limits = (
                RollbackLimits(),
                0,
                {},
                VoteLimits(),
            )
            for older in self.advised.values():
                self.closed_because[older.id] = f"lapsed when training {message.training} began"
            self.advised = {}
        self.training, self.turned_down = message.training, {}
        self.pace.restart()
        self.started, self.ended, self.observed = True, False, False
        self.tick = max(self.tick, message.tick)
        self.rules, self.lockstep, self.mesh_code = message.rules, message.lockstep, message.mesh_code
        self.trust.rules = message.rules
        self.reputations = {**message.reputations, **self.reputations}  # what was earned outlives the learner
        self.specs = {spec.name: spec for spec in message.actuators}
        self.metrics = message.metrics
        self.max_steps, self.step = message.horizon.max_steps, message.step
        self.effective = {}
        for spec in self.specs.values():
            self._settle(spec, spec.value)

    def announce(self, spec: ActuatorSpec) -> bool:
        """An actuator anew, or with other choices or bounds: what was refused of it, by the learner or here, was
        refused of the old one. False where it would be of another kind: then all stays as it is."""
        old = self.specs.get(spec.name)
        if old is not None and old.kind != spec.kind:
            self.counters["announced.other_kind"] += 1
            return False
        self.specs[spec.name] = spec
        self.turned_down.pop(spec.name, None)
        self.refused = {key for key in self.refused if key[1] != spec.name}
        self._settle(spec, spec.value)
        return True

    def read(self, observation: Observation) -> None:
        """Where the run is, and how good it is on held-out data."""
        self.step = observation.step
        metric = held_out(self.metrics)
        value = observation.metrics.get(metric.name) if metric else None
        reading = -value if metric and value is not None and metric.better == "down" else value
        self.rollback_limits.observe(observation.tick, observation.step, reading)

    def take(self, receipt: Receipt) -> None:
        """The decision has left the air, and the effective value is what was read back. Behind a receipt without a
        decision stands a command, or the learner itself."""
        flight = self.in_flight.pop(receipt.decision_id, None)
        if receipt.decision_id and flight is None:
            self.counters["receipt.not_in_flight"] += 1
        if receipt.actuator == ROLLBACK and receipt.status == "applied":
            self.rollback_limits.take(receipt)
        spec = self.specs.get(receipt.actuator)
        if spec is not None and spec.kind != "action" and receipt.status == "rejected" and receipt.decision_id:
            self.turned_down.setdefault(spec.name, []).append(receipt.reason)
        if spec is not None and receipt.status in ("applied", "noop"):
            self.turned_down.pop(receipt.actuator, None)
            self._settle(spec, receipt.after)

    def _settle(self, spec: ActuatorSpec, value: Value) -> None:
        if spec.kind == "action":  # it happens and leaves no setting behind
            self.effective[spec.name] = None
            return
        found = shaped(spec, value)
        if isinstance(found, Fault):
            self.counters["value.unreadable"] += 1
            self.effective.setdefault(spec.name, None)
        else:
            self.effective[spec.name] = found

    def spec(self, actuator: str) -> ActuatorSpec:
        """What is announced of it. One that is not announced any more counts as a setting."""
        return self.specs.get(actuator) or ActuatorSpec(name=actuator, kind="action")

    def hear(self, name: str) -> Agent | None:
        """The agent, live again because it spoke; None if it never joined."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.live, agent.last_tick = True, self.tick
        return agent

    def note(self, name: str, status: AgentStatus) -> None:
        if status.state == "joined":
            self.agents[name] = Agent(status.needs, status.moves, status.speciality, status.version, status.shadow)
        elif status.state == "left":
            self.agents.pop(name, None)
        agent = self.hear(name)
        if agent is None:
            self.counters["agent.left" if status.state == "left" else "agent.not_joined"] += 1
        elif status.state == "cannot_fire":
            agent.cannot_fire = status.reason or "no reason given"
        elif status.state == "done":
            agent.done_tick, agent.seen = status.tick, status.seen

    def lose_silent(self) -> None:
        for agent in self.agents.values():
            if agent.live and self.tick - agent.last_tick > self.rules.silent_ticks:
                agent.live = False

    def live(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, agent in self.agents.items() if agent.live))

    def shadowed(self, name: str) -> bool:
        """Whether the agent's votes are kept and do not count: by the rules, by its own word, because an operator muted
        it, or because nothing is left of its reputation."""
        agent = self.agents.get(name)
        lost = self.reputations.get(name, 1.0) < self.rules.shadow_reputation
        return lost or name in self.rules.shadow or name in self.muted or (agent is not None and agent.shadow)

    def standing(self, name: str, actuator: str) -> Standing:
        """What the agent's vote on this actuator counts for now."""
        agent = self.agents.get(name)
        declared = agent.speciality if agent is not None else ()
        trusted = self.trust.holds(name, actuator)
        special = self.trust.specialist(name, actuator, declared) if trusted else actuator in declared
        return Standing(self.reputations.get(name, 1.0), self.shadowed(name), not trusted, special)

    def voters(self) -> tuple[str, ...]:
        """The live agents whose votes count."""
        return tuple(name for name in self.live() if not self.shadowed(name))

    def autonomy_for(self, actuator: str) -> Autonomy:
        """As an operator set it, else as the rules have it."""
        return self.autonomy.get(actuator) or self.autonomy.get("") or self.rules.autonomy_for(actuator)

    def flying(self) -> list[InFlight]:
        """Adopted, no receipt yet, not lapsed."""
        return [flight for flight in self.in_flight.values() if self.tick <= flight.decision.expires_at_tick]

    def take_decision(self, decision: Decision) -> None:
        """A change starts the cool-down; of what passed, nothing older on its actuator can be
        approved any more; what is adopted is in flight."""
        if decision.verdict == "rejected":
            return
        actuator = decision.actuator
        if decision.verdict != "advised":
            self.decided_tick[actuator] = decision.tick
        older = self.advised.pop(actuator, None)
        if older is not None:
            taken = older.id == decision.of
            self.closed_because[older.id] = f"{'was approved as' if taken else 'gave way to'} decision {decision.id}"
        if decision.verdict == "advised":
            self.advised[actuator] = decision
        elif decision.verdict == "adopted":
            if not decision.command:
                self.rate_limits.turned(decision, self.specs.get(actuator), self.rules)
            self.in_flight[decision.id] = InFlight(decision, change(actuator, decision.before, decision.value))
            if self.spec(actuator).intervenes:
                self.adopted += not decision.command or bool(decision.of)
            moved = f"{actuator}, {show(decision.before)} → {show(decision.value)}"
            self.closed_because[decision.id] = f"was adopted at tick {decision.tick} ({moved})"
