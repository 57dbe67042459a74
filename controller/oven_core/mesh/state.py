"""The state of a run as the mesh knows it: actuators and their values, agents, the tick, and decisions in flight."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.actuator_values import Fault, coerce, show
from oven_core.mesh.change_requirements import change_between
from oven_core.mesh.limits import RollbackLimits, VoteLimits
from oven_core.mesh.trust import Standing, Trust
from oven_core.protocol.actuators import ROLLBACK
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
"""Number of gaps between observations. Their median is the pace, which one evaluation or pause hardly changes."""
MEAN_PACE_OBSERVATIONS: Final = 1_000
"""Number of observations for the mean pace. It is large enough that a batch stored at once is only a small part."""
MIN_SPAN_S: Final = 1.0
"""Minimum time span in seconds for the mean pace, because a few observations stored at once would look too fast."""
MIN_GAP_S: Final = 0.001
"""Minimum gap in seconds. Smaller ones are ignored, because the observations were queued during an outage."""


@dataclass(slots=True)
class Agent:
    """An agent that joined the run. The first four fields are copied from its AgentStatus."""

    needs: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    version: str = ""
    shadow: bool = False  # whether it joined as a shadow
    is_live: bool = True
    cannot_fire: str = ""  # the reason why it cannot vote in this run, or failed; empty if it can vote
    last_tick: int = 0  # tick of its newest message
    done_tick: int = -1  # the newest tick that it has finished
    seen_ballot: str = ""  # id of the newest ballot that it has seen


@dataclass(frozen=True, slots=True)
class PendingChange:
    """An adopted decision without a receipt yet."""

    decision: Decision
    change: str
    """The change in the notation of oven_core.mesh.change_requirements, such as "name:up"."""


def main_held_out_metric(metrics: Iterable[MetricSpec]) -> MetricSpec | None:
    """Return the main held-out metric: the one with the fewest parts in its name, then the first announced."""
    candidates = [metric for metric in metrics if metric.held_out and metric.better != "neither"]
    return min(candidates, key=lambda metric: metric.name.count("/"), default=None)


def training_objective(metrics: Iterable[MetricSpec]) -> MetricSpec | None:
    """Return the metric that the training optimizes: the reward, or the loss of a run without rewards."""
    by_name = {metric.name: metric for metric in metrics}
    return by_name.get("reward") or by_name.get("loss")


class NumberSet:
    """A set of message numbers. Messages arrive almost in order, so it stores only the numbers after the first gap."""

    def __init__(self) -> None:
        self._next = 0  # all numbers below it are in the set
        self._others: set[int] = set()  # the other numbers in the set

    def add(self, n: int) -> bool:
        """Add a number, and return whether it is new."""
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

    The mesh has no clock, so it states deadlines in ticks, which everybody who reads the log can count. It converts a
    time to ticks once, when it makes a decision. The times at which observations were stored are in the log, so each
    replica and each replay computes the same number of ticks."""

    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_GAPS))
    _newest_times: deque[float] = field(default_factory=lambda: deque(maxlen=MEAN_PACE_OBSERVATIONS))
    _last_time: float | None = None

    def add(self, stored_at: float) -> None:
        """Add the time, in seconds, at which the observation of a new tick was stored."""
        self._newest_times.append(stored_at)
        if self._last_time is not None and stored_at - self._last_time >= MIN_GAP_S:
            self._gaps.append(stored_at - self._last_time)
        self._last_time = stored_at

    def restart(self) -> None:
        """Ignore the gap before the first observation after a restart of the learner."""
        self._last_time = None
        self._newest_times.clear()

    def ticks(self, minutes: float) -> int:
        """Return the number of ticks in so many minutes at the median pace, rounded up, or 0 if no pace is known."""
        if not self._gaps or minutes <= 0:
            return 0
        return math.ceil(minutes * 60 / sorted(self._gaps)[len(self._gaps) // 2])

    def max_ticks(self, seconds: float) -> int:
        """Return the number of ticks in so many seconds at the faster of the median and mean pace, or 0 without a pace.

        The mean covers the newest `seconds`. If a fast loop's observations are stored in batches, the median is too
        slow, because only the gaps between batches count. After a pause, the mean is too slow."""
        if not self._newest_times or seconds <= 0:
            return 0
        times = [time for time in self._newest_times if time > self._newest_times[-1] - seconds]
        span = max(MIN_SPAN_S, times[-1] - times[0])
        return max(self.ticks(seconds / 60), math.ceil(len(times) * seconds / span))


@dataclass
class State:
    """The state of the run after all inputs so far. Only `Mesh.step` changes it."""

    tick: int = 0
    started: bool = False
    ended: bool = False
    observed: bool = False  # whether an observation has arrived, so that lockstep has a tick to close
    closed_tick: int = -1  # the newest tick that lockstep has closed
    rules: Rules = field(default_factory=Rules)
    lockstep: bool = False
    mesh_code: str = ""
    training: str = ""
    max_steps: int | None = None
    step: int = 0  # step of the newest observation
    reputations: dict[str, float] = field(default_factory=dict)
    specs: dict[str, ActuatorSpec] = field(default_factory=dict)
    metrics: tuple[MetricSpec, ...] = ()
    effective: dict[str, Value] = field(default_factory=dict)  # actuator → its value, as last read back
    agents: dict[str, Agent] = field(default_factory=dict)
    in_flight: dict[str, PendingChange] = field(default_factory=dict)  # by decision id
    interventions: int = 0  # adopted changes that count against the budget, without those that operators set
    cooldown_starts: dict[str, int] = field(default_factory=dict)  # actuator → start of its cool-down
    advised: dict[str, Decision] = field(default_factory=dict)  # actuator → its newest advice that can be approved
    close_reasons: dict[str, str] = field(default_factory=dict)  # decision id → why it cannot be approved or vetoed
    autonomy: dict[str, Autonomy] = field(default_factory=dict)  # set by operators, by actuator; "" for all others
    muted: set[str] = field(default_factory=set)
    incarnation: int = 0
    logged_refusals: set[tuple[str, str, str]] = field(default_factory=set)  # see Refusal.key
    commands: dict[str, tuple[str, OperatorCommand]] = field(default_factory=dict)  # id → operator and command
    counters: Counter[str] = field(default_factory=Counter)
    rollback_limits: RollbackLimits = field(default_factory=RollbackLimits)
    trust: Trust = field(default_factory=Trust)
    vote_limits: VoteLimits = field(default_factory=VoteLimits)
    pace: ObservationPace = field(default_factory=ObservationPace)
    learner_rejections: dict[str, list[str]] = field(default_factory=dict)  # actuator → reasons, since its last success
    _numbers: NumberSet = field(default_factory=NumberSet)  # numbers of the incarnation's messages

    def is_new(self, message: LearnerMessage) -> bool:
        """Return whether a learner's message is from the current incarnation and not a repetition.

        A message from an earlier incarnation is ignored, because it describes a process that has ended."""
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
        """Start a new incarnation of the learner, whose settings replace the old ones.

        Agents, the budget, decisions in flight, advice and operators' settings (autonomy, muted agents) stay. A script
        may also start a second training, with other weights and data. That training starts with a full budget, and
        without the cool-downs, advice and rollbacks of the first one."""
        if self.started and message.training != self.training:
            self.rollback_limits, self.vote_limits = RollbackLimits(), VoteLimits()
            self.interventions, self.cooldown_starts = 0, {}
            for older in self.advised.values():
                self.close_reasons[older.id] = f"lapsed when training {message.training} started"
            self.advised = {}
        self.training, self.learner_rejections = message.training, {}
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
        """Store an actuator that is new, or has new choices or bounds. Forget what was refused under its old spec.

        Return False and change nothing if the kind of the actuator would change."""
        old = self.specs.get(spec.name)
        if old is not None and old.kind != spec.kind:
            self.counters["announced.other_kind"] += 1
            return False
        self.specs[spec.name] = spec
        self.learner_rejections.pop(spec.name, None)
        self.logged_refusals = {key for key in self.logged_refusals if key[1] != spec.name}
        self._set_effective(spec, spec.value)
        return True

    def apply_observation(self, observation: Observation) -> None:
        """Store the run's position and its quality on held-out data."""
        self.step = observation.step
        metric = main_held_out_metric(self.metrics)
        quality = observation.metrics.get(metric.name) if metric else None
        if metric and quality is not None and metric.better == "down":
            quality = -quality
        self.rollback_limits.observe(observation.tick, observation.step, quality)

    def apply_receipt(self, receipt: Receipt) -> None:
        """Remove the receipt's decision from those in flight, and store the value that was read back."""
        pending = self.in_flight.pop(receipt.decision_id, None)
        if receipt.decision_id and pending is None:
            self.counters["receipt.not_in_flight"] += 1
        if receipt.actuator == ROLLBACK and receipt.status == "applied":
            self.rollback_limits.add(receipt)
        spec = self.specs.get(receipt.actuator)
        if spec is not None and spec.kind != "action" and receipt.status == "rejected" and receipt.decision_id:
            self.learner_rejections.setdefault(spec.name, []).append(receipt.reason)
        if spec is not None and receipt.status in ("applied", "noop"):
            self.learner_rejections.pop(receipt.actuator, None)
            self._set_effective(spec, receipt.after)

    def apply_status(self, name: str, status: AgentStatus) -> None:
        """Store an agent's status."""
        if status.state == "joined":
            self.agents[name] = Agent(status.needs, status.moves, status.version, status.shadow)
        elif status.state == "left":
            self.agents.pop(name, None)
        agent = self.mark_live(name)
        if agent is None:
            self.counters["agent.left" if status.state == "left" else "agent.not_joined"] += 1
        elif status.state in ("cannot_fire", "failed"):
            agent.cannot_fire = status.reason or "no reason given"
        elif status.state == "done":
            agent.done_tick, agent.seen_ballot = status.tick, status.seen

    def apply_decision(self, decision: Decision) -> None:
        """Store a decision. A change replaces older advice. An adopted one is in flight, and starts the cool-down."""
        if decision.verdict == "rejected":
            return
        actuator = decision.actuator
        if decision.verdict == "adopted":
            self.cooldown_starts[actuator] = decision.tick
        older = self.advised.pop(actuator, None)
        if older is not None:
            successor = "was approved as" if older.id == decision.approves else "was replaced by"
            self.close_reasons[older.id] = f"{successor} decision {decision.id}"
        if decision.verdict == "advised":
            self.advised[actuator] = decision
            return
        self.in_flight[decision.id] = PendingChange(decision, change_between(actuator, decision.before, decision.value))
        if self.spec(actuator).intervenes and (decision.approves or not decision.command):
            self.interventions += 1
        change = f"{actuator}, {show(decision.before)} → {show(decision.value)}"
        self.close_reasons[decision.id] = f"was adopted at tick {decision.tick} ({change})"

    def _set_effective(self, spec: ActuatorSpec, value: Value) -> None:
        if spec.kind == "action":  # an action has no value
            self.effective[spec.name] = None
            return
        coerced = coerce(spec, value)
        if isinstance(coerced, Fault):
            self.counters["value.unreadable"] += 1
            self.effective.setdefault(spec.name, None)
        else:
            self.effective[spec.name] = coerced

    def spec(self, actuator: str) -> ActuatorSpec:
        """Return the spec of an actuator, or that of a plain action if the actuator is not announced."""
        return self.specs.get(actuator) or ActuatorSpec(name=actuator, kind="action")

    def mark_live(self, name: str) -> Agent | None:
        """Mark the agent as live, because it sent a message, and return it. Return None if it has not joined."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.is_live, agent.last_tick = True, self.tick
        return agent

    def mark_silent_agents(self) -> None:
        """Mark agents as not live if they were silent for too long."""
        for agent in self.agents.values():
            if agent.is_live and self.tick - agent.last_tick > self.rules.silent_ticks:
                agent.is_live = False

    def is_shadow(self, name: str) -> bool:
        """Return whether the agent's votes are logged but not counted.

        An agent is a shadow if it joined as one, the rules or an operator say so, or its reputation is too low."""
        agent = self.agents.get(name)
        is_disreputable = self.reputations.get(name, 1.0) < self.rules.shadow_reputation
        joined_as_shadow = agent is not None and agent.shadow
        return joined_as_shadow or is_disreputable or name in self.rules.shadow or name in self.muted

    def is_trusted(self, name: str, actuator: str) -> bool:
        """Return whether the agent's votes on this actuator can decide and veto: it is trusted and not suspended."""
        return self.trust.is_trusted(name, actuator) and not self.vote_limits.suspension(name, actuator)

    def standing(self, name: str, actuator: str) -> Standing:
        """Return the current standing of the agent on this actuator."""
        newcomer, decides_alone = not self.is_trusted(name, actuator), self.trust.decides_alone(name, actuator)
        return Standing(self.reputations.get(name, 1.0), self.is_shadow(name), newcomer, decides_alone and not newcomer)

    def voters(self) -> tuple[str, ...]:
        """Return the live agents whose votes count, sorted, without those that cannot vote until they join again."""
        return tuple(sorted(name for name, agent in self.agents.items() if self._is_voter(name, agent)))

    def voters_are_done(self) -> bool:
        """Return whether all voters have finished the current tick."""
        return all(
            agent.done_tick >= self.tick or not self._is_voter(name, agent) for name, agent in self.agents.items()
        )

    def _is_voter(self, name: str, agent: Agent) -> bool:
        return agent.is_live and not agent.cannot_fire and not self.is_shadow(name)

    def autonomy_for(self, actuator: str) -> Autonomy:
        """Return the autonomy that an operator set for the actuator, or else the one in the rules."""
        return self.rules.autonomy_for(actuator, self.autonomy)

    def changes_in_flight(self) -> list[PendingChange]:
        """Return the adopted decisions without a receipt that have not expired."""
        return [pending for pending in self.in_flight.values() if self.tick <= pending.decision.expires_at_tick]
