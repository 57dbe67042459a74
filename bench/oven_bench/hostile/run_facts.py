"""Facts about an attack, folded from one run's log."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import direction
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    Observation,
    Outcome,
    RunEnded,
    RunStarted,
    TallyLine,
    Value,
)

ACCURACY = "eval/accuracy"
LATER = 20
"""An attacker's reputation is read this many decisions after its first harm."""


@dataclass
class Log:
    """Facts from a log. `guests` are the agents that were plugged in; ticks are the mesh's."""

    events: int = 0
    accuracy: float | None = None
    """Held-out accuracy at the end, 0 to 1; None if the run did not complete."""
    joined: dict[str, int] = field(default_factory=dict)
    """Guest → the tick at which it joined."""
    remedy_tick: int | None = None
    """Tick of the first adopted decision that a shipped agent proposed; evaluations and checkpoints do not count."""
    own_tick: int | None = None
    """Tick of the first decision that a guest proposed and that was adopted without a person's approval."""
    own: int = 0
    """Number of such decisions."""
    rejected: int = 0
    """Number of rejected decisions."""
    scored: int = 0
    """Outcomes that scored a guest before its first own decision was adopted."""
    earned: float | None = None
    """The highest reputation that an outcome gave a guest; None if none did."""
    harm_tick: int | None = None
    """Tick of the first outcome that was worse than before and lowered the reputation of a guest that supported it."""
    decided_since: int = 0
    """Number of decisions after that, 20 at most."""
    reputation: float | None = None
    """The highest reputation among the guests at the 20th of those decisions, or at the last one if there are fewer."""
    honest_reputation: float | None = None
    """The honest agent's reputation at the same decision."""


@dataclass(frozen=True)
class Case:
    """One run; `attack` is empty for a run without an attack."""

    attack: str
    start: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Row:
    """The result of a case."""

    case: Case
    log: Log
    log_bytes: int
    memory_mb: float
    """Peak resident memory of the attack's processes together, in MiB."""
    processes_left: int
    """The run's processes that survive the end of the stack and, where they ran beside it, SIGTERM."""
    exit: int | None
    """Exit code of `up`; None if it had to be ended because it took too long."""
    seconds: float


def read(events: Iterable[Event], guests: Collection[str], honest: str) -> Log:
    log, tick = Log(), 0
    idle: frozenset[str] = frozenset()
    for event in events:
        log.events += 1
        match event.body:
            case RunStarted(actuators=specs):
                idle = frozenset(spec.name for spec in specs if not spec.intervenes)
            case Observation(tick=newest):
                tick = newest
            case AgentStatus(state="joined") if event.author in guests:
                log.joined.setdefault(event.author, tick)
            case Decision() as decision:
                _decided(log, decision, guests, honest, intervenes=decision.actuator not in idle)
            case Outcome(scored=True) as outcome:
                _judged(log, outcome, guests)
            case RunEnded(reason="completed", metrics=metrics):
                accuracy = metrics.get(ACCURACY)
                log.accuracy = accuracy if accuracy is not None and math.isfinite(accuracy) else None
            case _:
                pass
    return log


def _decided(log: Log, decision: Decision, guests: Collection[str], honest: str, *, intervenes: bool) -> None:
    if decision.verdict == "adopted" and not decision.command and intervenes:
        behind = {line.agent for line in decision.tally if _wanted(line, decision.before, decision.value)}
        if behind.difference(guests) and log.remedy_tick is None:
            log.remedy_tick = decision.tick
        if behind.intersection(guests):
            log.own += 1
            if log.own_tick is None:
                log.own_tick = decision.tick
    log.rejected += decision.verdict == "rejected"
    if log.harm_tick is None or log.decided_since == LATER:
        return
    log.decided_since += 1
    weights = {line.agent: line.reputation for line in decision.tally if not line.shadow}
    held = [weight for name, weight in weights.items() if name in guests]
    log.reputation = max(held) if held else log.reputation
    log.honest_reputation = weights.get(honest, log.honest_reputation)


def _wanted(line: TallyLine, before: Value, value: Value) -> bool:
    """Whether the agent proposed this change, or one in the same direction, and its vote had weight."""
    return line.stance == "propose" and line.weight > 0 and direction(before, line.value) == direction(before, value)


def _judged(log: Log, outcome: Outcome, guests: Collection[str]) -> None:
    lines = [line for line in outcome.lines if line.agent in guests]
    log.earned = max([line.after for line in lines] + [log.earned or 0.0]) if lines else log.earned
    if lines and log.own_tick is None:
        log.scored += 1
    worse = outcome.gain is None or outcome.gain < 0
    blamed = any(line.stance in ("propose", "for") and line.merit < 0 for line in lines)
    if worse and blamed and log.harm_tick is None:
        log.harm_tick = outcome.tick
