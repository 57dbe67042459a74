"""Limits on how much one agent may log, and on how often one actuator may be turned to and fro.

Two limits on votes: so many count in a tick, and so many ballots may be open that one agent opened. And a wait: an
agent whose ballot failed at the vote opens none on that actuator for a cool-down, twice that after the next failure,
up to MOST cool-downs; a newcomer none on any actuator, and after advice that no one followed as well. A proposal that
failed is not heard again with the same words for AGAIN cool-downs. What a guardrail turned down counts for nothing
here: the vote passed.

An actuator that changes direction `rules.reversals` times, each within WINDOWS outcome windows of the change before,
is two agents at odds, or one that hunts: from then on a person decides on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.actuator_values import direction, show
from oven_core.protocol.messages import ActuatorSpec, Decision, Value, Vote
from oven_core.protocol.rules import Rules

MOST: Final = 16
"""Cool-downs that an agent waits at most after ballots that failed at the vote."""
AGAIN: Final = 10
"""Cool-downs for which a failed proposal is not heard again in the same words."""
WINDOWS: Final = 2
"""Outcome windows within which a change in the other direction is a reversal."""

_Said = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Failed:
    """Of one agent on one actuator: ballots in a row that failed at the vote, the newest's tick, and what it said;
    None where it may say the same again."""

    count: int
    tick: int
    said: _Said | None


@dataclass(slots=True)
class _Turned:
    """The newest change of an actuator, and how often it was reversed in quick succession."""

    tick: int
    way: str
    before: Value
    reversals: int = 0


@dataclass
class VoteLimits:
    """One training's. Part of the mesh's state."""

    _tick: int = -1
    _votes: Counter[str] = field(default_factory=Counter)
    _failed: dict[tuple[str, str], _Failed] = field(default_factory=dict)
    _turned: dict[str, _Turned] = field(default_factory=dict)

    def crowds(self, agent: str, tick: int, rules: Rules) -> bool:
        """Whether this is one vote too many of the agent in this tick."""
        if tick != self._tick:
            self._tick, self._votes = tick, Counter()
        self._votes[agent] += 1
        return self._votes[agent] > rules.votes_per_tick

    def waits(self, agent: str, newcomer: bool, vote: Vote, tick: int, rules: Rules) -> str:
        """Why the agent may not open this ballot now; empty if it may."""
        failed = self._failed.get((agent, "" if newcomer else vote.actuator))
        if failed is None:
            return ""
        wait = rules.cooldown_ticks * min(2 ** (failed.count - 1), MOST)
        if tick < failed.tick + wait:
            did = "failed at the vote" if failed.said is not None else "were advice that nobody followed"
            return f"its last {failed.count} {did}; it may open one again at tick {failed.tick + wait}"
        if failed.said == _said(vote) and tick < failed.tick + AGAIN * rules.cooldown_ticks:
            return f"the same failed at tick {failed.tick}, for the same reasons"
        return ""

    def failed(self, agent: str, newcomer: bool, vote: Vote, tick: int) -> None:
        """The agent's ballot failed at the vote."""
        self._wait(agent, "" if newcomer else vote.actuator, tick, _said(vote))

    def advised(self, newcomer: str, tick: int) -> None:
        """The ballot of a newcomer became advice: until a person follows it, the next comes later and later."""
        self._wait(newcomer, "", tick, None)

    def _wait(self, agent: str, actuator: str, tick: int, said: _Said | None) -> None:
        before = self._failed.get((agent, actuator))
        count = before.count if before else 0
        if before is None or before.tick != tick:  # the parts of a plan close together, and are one
            count = min(count, 30) + 1
        self._failed[agent, actuator] = _Failed(count, tick, said)

    def passed(self, agent: str, actuator: str) -> None:
        """The agent's ballot passed the vote, or a person followed its advice."""
        self._failed.pop((agent, actuator), None)
        self._failed.pop((agent, ""), None)

    def turned(self, decision: Decision, spec: ActuatorSpec | None, rules: Rules) -> None:
        """An agents' change is adopted."""
        if spec is None or spec.kind not in ("scalar", "choice"):
            return
        way, last = direction(decision.before, decision.value), self._turned.get(spec.name)
        quick = last is not None and decision.tick - last.tick <= WINDOWS * rules.outcome_ticks
        reversals = last.reversals if last is not None and quick else 0
        if last is not None and quick and _undoes(spec, last, way, decision.value):
            reversals += 1
        self._turned[spec.name] = _Turned(decision.tick, way, decision.before, reversals)

    def frozen(self, actuator: str, rules: Rules) -> str:
        """Why a person decides on this actuator; empty if the agents do."""
        turned = self._turned.get(actuator)
        if turned is None or turned.reversals < rules.reversals:
            return ""
        remedy = f"set it, or `oven-controller autonomy auto {actuator}` lets the agents go on"
        return f"{actuator} was turned back {turned.reversals} times, at last at tick {turned.tick}: {remedy}"

    def thaw(self, actuator: str) -> None:
        """A person has decided on it, or on every one if it is empty."""
        for name in [actuator] if actuator else list(self._turned):
            self._turned.pop(name, None)


def _undoes(spec: ActuatorSpec, last: _Turned, way: str, value: Value) -> bool:
    if spec.kind == "choice":
        return show(value) == show(last.before)
    return way != last.way


def _said(vote: Vote) -> _Said:
    return show(vote.value), vote.rationale, vote.evidence
