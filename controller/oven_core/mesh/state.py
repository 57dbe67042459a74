"""The mesh's view of a run: actuators and their effective values, agents, the clock, and decisions in flight."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.actuator_values import Fault, shaped, show
from oven_core.mesh.change_requirements import change
from oven_core.mesh.limits import RollbackLimits, VoteLimits
from oven_core.mesh.trust import Standing, Trust
from oven_core.protocol.actuator_names import ROLLBACK
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

PACE_GAPS: Final = 50
"""Number of gaps between observations whose median is the pace. One evaluation or pause does not change the median."""
NEWEST: Final = 1_000
"""Number of observations for the mean pace: so many that a batch stored at once is only a small part."""
LEAST_SPAN_S: Final = 1.0
"""Minimum time span in seconds for a mean pace. Below it, a few observations stored at once would look too fast."""
LEAST_GAP_S: Final = 0.001
"""Minimum gap in seconds. Observations that queued during an outage are stored closer together than made."""


@dataclass(slots=True)
class Agent:
    """The mesh's record of an agent that joined."""

    needs: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    speciality: tuple[str, ...] = ()
    version: str = ""
    shadow: bool = False  # it joined as one
    live: bool = True
    cannot_fire: str = ""  # why it cannot
    last_tick: int = 0  # when its newest message came
    done_tick: int = -1
    seen: str = ""  # the newest ballot that it has seen


@dataclass(frozen=True, slots=True)
class InFlight:
    """An adopted decision without a receipt yet."""

    decision: Decision
    change: str
    """The change in the notation of `needs`: "name:up"."""


def held_out(metrics: Iterable[MetricSpec]) -> MetricSpec | None:
    """Return the main held-out metric: the one with the fewest parts in its name, then the first announced."""
    declared = [metric for metric in metrics if metric.held_out and metric.better != "neither"]
    return min(declared, key=lambda metric: metric.name.count("/"), default=None)


class NumberSet:
    """A set of integers from 0. The learner's numbers arrive in order, so few are stored."""

    def __init__(self) -> None:
        self._next = 0  # all numbers below it are in the set
        self._others: set[int] = set()

    def add(self, n: int) -> bool:
        """Add `n`; return whether it is new."""
        if n < self._next or n in self._others:
            return False
        self._others.add(n)
        while self._next in self._others:
            self._others.remove(self._next)
            self._next += 1
        return True


@dataclass
class ObservationPace:
    """Converts a duration to ticks, using the times at which the log stored the newest observations.

    The mesh has no clock. A rule in minutes becomes ticks when a decision is made, and every reader counts ticks after
    that. The times come from the log, so each replica, and each replay, computes the same number.
    """

    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_GAPS))
    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _last: float | None = None

    def add(self, stored: float) -> None:
        """Add the time, in seconds, at which the observation of a new tick was stored."""
        self._newest.append(stored)
        if self._last is not None and stored - self._last >= LEAST_GAP_S:
            self._gaps.append(stored - self._last)
        self._last = stored

    def restart(self) -> None:
        """Skip the time until the first observation of a learner that starts again: it is not a step."""
        self._last = None
        self._newest.clear()

    def ticks(self, minutes: float) -> int:
        """Return the ticks that take this long at the median pace, rounded up; 0 before there is a pace."""
        if not self._gaps or minutes <= 0:
            return 0
        return math.ceil(minutes * 60 / sorted(self._gaps)[len(self._gaps) // 2])

    def most_ticks(self, seconds: float) -> int:
        """Return the ticks that take this long at the median pace, or at the mean pace of the newest `seconds` if that
        is more. The log stores a fast loop's observations many at once, and the gaps between those show too slow a
        pace. After a pause, the mean does. 0 without a pace, or for 0 seconds."""
        if not self._newest or seconds <= 0:
            return 0
        newest = [stored for stored in self._newest if stored > self._newest[-1] - seconds]
        span = max(LEAST_SPAN_S, newest[-1] - newest[0])
        return max(self.ticks(seconds / 60), math.ceil(len(newest) * seconds / span))


@dataclass
class State:
    """The state of the run after all inputs so far. Only `Mesh.step` changes it."""

    tick: int = 0
    started: bool = False
    ended: bool = False
    observed: bool = False  # an observation came, so lockstep has a tick to close
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
    in_flight: dict[str, InFlight] = field(default_factory=dict)  # by decision
    adopted: int = 0  # counts against the budget, without what operators set
    decided_tick: dict[str, int] = field(default_factory=dict)  # actuator → start of its cool-down
    advised: dict[str, Decision] = field(default_factory=dict)  # actuator → its newest advice that may be approved
    closed_because: dict[str, str] = field(default_factory=dict)  # decision → why it cannot be approved or vetoed
    autonomy: dict[str, Autonomy] = field(default_factory=dict)  # set by operators; "" for every other actuator
    muted: set[str] = field(default_factory=set)
    incarnation: int = 0
    refused: set[tuple[str, str, str]] = field(default_factory=set)
    commands: dict[str, tuple[str, OperatorCommand]] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    rollback_limits: RollbackLimits = field(default_factory=RollbackLimits)
    trust: Trust = field(default_factory=Trust)
    vote_limits: VoteLimits = field(default_factory=VoteLimits)
    pace: ObservationPace = field(default_factory=ObservationPace)
    turned_down: dict[str, list[str]] = field(default_factory=dict)  # actuator → the learner's rejections in a row
    _numbers: NumberSet = field(default_factory=NumberSet)  # of the incarnation's messages

    def is_new(self, message: LearnerMessage) -> bool:
        """Return whether a learner's message counts: not a repetition, and from the current incarnation. A message of a
        dead incarnation is about a process that is gone, settings included."""
        if isinstance(message, RunStarted) and message.incarnation > self.incarnation:
            self.incarnation, self._numbers = message.incarnation, NumberSet()
        elif message.incarnation != self.incarnation:
            self.counters["learner.other_incarnation"] += 1
            return False
        if not self._numbers.add(message.n):
            self.counters["learner.repeated"] += 1
            return False
        return True

    def start(self, message: RunStarted) -> None:
        """Start a new incarnation, whose settings replace the old ones.

        Agents, the budget, decisions in flight or advised, and what operators set (autonomy, muted agents) stay.
        Another training of the same script has other weights and other data. So it starts without the previous
        training's budget, cool-downs, advice and rollbacks.
        """
        if self.started and message.training != self.training:
            self.rollback_limits, self.vote_limits = RollbackLimits(), VoteLimits()
            self.adopted, self.decided_tick = 0, {}
            for older in self.advised.values():
                self.closed_because[older.id] = f"lapsed when training {message.training} began"
            self.advised = {}
        self.training, self.turned_down = message.training, {}
        self.pace.restart()
        self.started, self.ended, self.observed = True, False, False
        self.tick = max(self.tick, message.tick)
        self.rules, self.lockstep, self.mesh_code = message.rules, message.lockstep, message.mesh_code
        self.trust.rules = message.rules
        self.reputations = {**message.reputations, **self.reputations}  # earned reputations outlive the learner
        self.specs = {spec.name: spec for spec in message.actuators}
        self.metrics = message.metrics
        self.max_steps, self.step = message.horizon.max_steps, message.step
        self.effective = {}
        for spec in self.specs.values():
            self._set_effective(spec, spec.value)

    def announce(self, spec: ActuatorSpec) -> bool:
        """Store an actuator that is new, or has other choices or bounds. Refusals of the old one, by the learner or
        here, no longer count. Return False, and change nothing, if the actuator would become another kind."""
        old = self.specs.get(spec.name)
        if old is not None and old.kind != spec.kind:
            self.counters["announced.other_kind"] += 1
            return False
        self.specs[spec.name] = spec
        self.turned_down.pop(spec.name, None)
        self.refused = {key for key in self.refused if key[1] != spec.name}
        self._set_effective(spec, spec.value)
        return True

    def apply_observation(self, observation: Observation) -> None:
        """Store the run's position and its quality on held-out data."""
        self.step = observation.step
        metric = held_out(self.metrics)
        value = observation.metrics.get(metric.name) if metric else None
        reading = -value if metric and value is not None and metric.better == "down" else value
        self.rollback_limits.observe(observation.tick, observation.step, reading)

    def apply_receipt(self, receipt: Receipt) -> None:
        """End the decision's flight, if the receipt is for one, and store the value that was read back."""
        flight = self.in_flight.pop(receipt.decision_id, None)
        if receipt.decision_id and flight is None:
            self.counters["receipt.not_in_flight"] += 1
        if receipt.actuator == ROLLBACK and receipt.status == "applied":
            self.rollback_limits.add(receipt)
        spec = self.specs.get(receipt.actuator)
        if spec is not None and spec.kind != "action" and receipt.status == "rejected" and receipt.decision_id:
            self.turned_down.setdefault(spec.name, []).append(receipt.reason)
        if spec is not None and receipt.status in ("applied", "noop"):
            self.turned_down.pop(receipt.actuator, None)
            self._set_effective(spec, receipt.after)

    def apply_status(self, name: str, status: AgentStatus) -> None:
        """Store an agent's status."""
        if status.state == "joined":
            self.agents[name] = Agent(status.needs, status.moves, status.speciality, status.version, status.shadow)
        elif status.state == "left":
            self.agents.pop(name, None)
        agent = self.mark_live(name)
        if agent is None:
            self.counters["agent.left" if status.state == "left" else "agent.not_joined"] += 1
        elif status.state == "cannot_fire":
            agent.cannot_fire = status.reason or "no reason given"
        elif status.state == "done":
            agent.done_tick, agent.seen = status.tick, status.seen

    def apply_decision(self, decision: Decision) -> None:
        """Store a decision. A change starts the cool-down and ends older advice; an adopted one is in flight."""
        if decision.verdict == "rejected":
            return
        actuator = decision.actuator
        if decision.verdict != "advised":
            self.decided_tick[actuator] = decision.tick
        older = self.advised.pop(actuator, None)
        if older is not None:
            approved = older.id == decision.approves
            self.closed_because[older.id] = f"{'was approved as' if approved else 'gave way to'} decision {decision.id}"
        if decision.verdict == "advised":
            self.advised[actuator] = decision
            return
        if not decision.command:
            self.vote_limits.add_change(decision, self.specs.get(actuator), self.rules)
        self.in_flight[decision.id] = InFlight(decision, change(actuator, decision.before, decision.value))
        if self.spec(actuator).intervenes:
            self.adopted += not decision.command or bool(decision.approves)
        moved = f"{actuator}, {show(decision.before)} → {show(decision.value)}"
        self.closed_because[decision.id] = f"was adopted at tick {decision.tick} ({moved})"

    def _set_effective(self, spec: ActuatorSpec, value: Value) -> None:
        if spec.kind == "action":  # it leaves no setting behind
            self.effective[spec.name] = None
            return
        setting = shaped(spec, value)
        if isinstance(setting, Fault):
            self.counters["value.unreadable"] += 1
            self.effective.setdefault(spec.name, None)
        else:
            self.effective[spec.name] = setting

    def spec(self, actuator: str) -> ActuatorSpec:
        """Return the announcement of an actuator. One that is no longer announced counts as a setting."""
        return self.specs.get(actuator) or ActuatorSpec(name=actuator, kind="action")

    def mark_live(self, name: str) -> Agent | None:
        """Return the agent, live because it sent a message; None if it never joined."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.live, agent.last_tick = True, self.tick
        return agent

    def drop_silent(self) -> None:
        """Mark agents as not live if they were silent for too long."""
        for agent in self.agents.values():
            if agent.live and self.tick - agent.last_tick > self.rules.silent_ticks:
                agent.live = False

    def live(self) -> tuple[str, ...]:
        """Return the names of the live agents, sorted."""
        return tuple(sorted(name for name, agent in self.agents.items() if agent.live))

    def shadowed(self, name: str) -> bool:
        """Return whether the agent's votes are logged and do not count: by the rules, because it joined as a shadow,
        because an operator muted it, or because it lost its reputation."""
        agent = self.agents.get(name)
        lost = self.reputations.get(name, 1.0) < self.rules.shadow_reputation
        return lost or name in self.rules.shadow or name in self.muted or (agent is not None and agent.shadow)

    def standing(self, name: str, actuator: str) -> Standing:
        """Return the current standing of the agent on this actuator."""
        agent = self.agents.get(name)
        declared = agent.speciality if agent is not None else ()
        trusted = self.trust.holds(name, actuator)
        special = self.trust.specialist(name, actuator, declared) if trusted else actuator in declared
        return Standing(self.reputations.get(name, 1.0), self.shadowed(name), not trusted, special)

    def voters(self) -> tuple[str, ...]:
        """Return the live agents whose votes count."""
        return tuple(name for name in self.live() if not self.shadowed(name))

    def autonomy_for(self, actuator: str) -> Autonomy:
        """Return the autonomy that an operator set, else that of the rules."""
        return self.autonomy.get(actuator) or self.autonomy.get("") or self.rules.autonomy_for(actuator)

    def flying(self) -> list[InFlight]:
        """Return the adopted decisions without a receipt that have not lapsed."""
        return [flight for flight in self.in_flight.values() if self.tick <= flight.decision.expires_at_tick]
