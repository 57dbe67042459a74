"""Limits that stop loops: repeated rollbacks, floods of votes, and back-and-forth changes of one actuator.

**Rollbacks.** A run that repeats a rollback without a gain trains the same steps again and again. So at most
MAX_ROLLBACKS rollbacks may go back to a step or before it, until the held-out metric reaches a new best value. If
one of them did harm, no other may go back to that step. Without held-out measurements, a rollback that discards n steps
counts until the run is n steps past the step where it happened.

**Votes.** An agent may cast a limited number of votes per tick, and have a limited number of open ballots. An agent
whose ballot failed at the vote has to wait before it opens the next one on that actuator. It waits one cool-down, and
twice as long after each further failure, but at most MAX_COOLDOWNS. A newcomer waits on every actuator, and also after
advice that no person approved. A repeated proposal with the same reasons is refused for REPEAT_COOLDOWNS cool-downs. A
proposal that a guardrail rejected is not a failure, because it passed the vote.

**Reversals.** An actuator is frozen if it changes direction `rules.reversals` times, each time within REVERSAL_WINDOWS
outcome windows of the previous change. Two agents disagree or one oscillates, so a person has to decide from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_core.mesh.actuator_values import direction, show
from oven_core.mesh.measurements import is_sound
from oven_core.protocol.messages import ActuatorSpec, Decision, Receipt, Value, Vote
from oven_core.protocol.rules import Rules

MAX_ROLLBACKS: Final = 2
MAX_COOLDOWNS: Final = 16
REPEAT_COOLDOWNS: Final = 10
REVERSAL_WINDOWS: Final = 2


@dataclass(slots=True)
class _Rollback:
    decision: str
    tick: int
    left_step: float
    """The step at which the rollback happened."""
    restored_step: float
    """The step that it restored."""
    did_harm: bool = False


@dataclass(slots=True)
class RollbackLimits:
    """The rollbacks of one training. They decide whether another rollback may be adopted."""

    _rollbacks: list[_Rollback] = field(default_factory=list)
    _best_quality: float | None = None
    """The best measurement of the main held-out metric, with its sign set so that higher is better."""
    _best_tick: int = -1
    _offsets: list[tuple[int, int]] = field(default_factory=list)
    """(tick, step − tick) for every tick at which the difference changed."""
    _furthest_step: float = 0.0
    """The highest step since the newest rollback."""

    def observe(self, tick: int, step: int, quality: float | None) -> None:
        """Record an observation. `quality` is the main held-out metric, with its sign set so that higher is better."""
        if not self._offsets or self._offsets[-1][1] != step - tick:
            self._offsets.append((tick, step - tick))
        self._furthest_step = max(self._furthest_step, step)
        if quality is not None and is_sound(quality) and (self._best_quality is None or quality > self._best_quality):
            self._best_quality, self._best_tick = quality, tick

    def add(self, receipt: Receipt) -> None:
        """Record an applied rollback. Its receipt states the steps before and after."""
        left_step, restored_step = receipt.before, receipt.after
        if not isinstance(left_step, int | float) or not isinstance(restored_step, int | float):
            return  # the receipt does not state steps
        self._rollbacks.append(_Rollback(receipt.decision_id, receipt.tick, float(left_step), float(restored_step)))
        self._furthest_step = float(restored_step)

    def record_harm(self, decision: str) -> None:
        """Record that the outcome of this rollback was harm."""
        for rollback in self._rollbacks:
            if rollback.decision == decision:
                rollback.did_harm = True

    def refusal_reason(self, tick: int) -> str:
        """Return why the run may not go back to `tick` now, or an empty string if it may."""
        step = self._step_at(tick)
        rollbacks = [past for past in self._rollbacks if past.restored_step <= step and self._is_counted(past)]
        has_quality = self._best_quality is not None
        progress = "no held-out reading has improved since" if has_quality else "the run has got no further since"
        harmful = next((rollback for rollback in rollbacks if rollback.did_harm), None)
        if harmful is not None:
            return f"the rollback of tick {harmful.tick} to step {harmful.restored_step:.0f} did harm, and {progress}"
        if len(rollbacks) < MAX_ROLLBACKS:
            return ""
        ticks = " and ".join(str(rollback.tick) for rollback in rollbacks[-MAX_ROLLBACKS:])
        cause = f"those of ticks {ticks} went back to step {rollbacks[-1].restored_step:.0f}, and {progress}"
        return f"too many rollbacks: {cause}; the limit is {MAX_ROLLBACKS}"

    def _is_counted(self, rollback: _Rollback) -> bool:
        """Return whether the run has not improved, or not got further, since the rollback."""
        if self._best_quality is not None:
            return rollback.tick > self._best_tick
        if rollback is not self._rollbacks[-1]:
            return True
        discarded_steps = rollback.left_step - rollback.restored_step
        return self._furthest_step <= rollback.left_step + discarded_steps

    def _step_at(self, tick: int) -> int:
        """Return the step of the run at `tick`."""
        if not self._offsets:
            return tick
        index = bisect_right(self._offsets, tick, key=lambda entry: entry[0]) - 1
        _, offset = self._offsets[max(index, 0)]
        return tick + offset


_Content: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A proposal's value, rationale and evidence, which identify a repeated proposal."""


@dataclass(slots=True)
class _FailedBallots:
    """The consecutive failed ballots of one agent on one actuator, or of a newcomer on all actuators."""

    count: int
    tick: int
    """Tick of the newest failed ballot."""
    content: _Content | None
    """Content of the newest proposal; None if it became advice, which may be repeated."""


@dataclass(slots=True)
class _NewestChange:
    """The newest change of an actuator."""

    tick: int
    direction: str
    before: Value
    reversals: int = 0
    """Number of reversals of direction in quick succession."""


@dataclass
class VoteLimits:
    """The votes and changes of one training. They decide whether an agent may vote or open a ballot."""

    _tick: int = -1
    _votes: Counter[str] = field(default_factory=Counter)
    _failed_ballots: dict[tuple[str, str], _FailedBallots] = field(default_factory=dict)  # by (agent, actuator or "")
    _newest_changes: dict[str, _NewestChange] = field(default_factory=dict)  # by actuator

    def count_vote(self, agent: str, tick: int, rules: Rules) -> bool:
        """Count a vote. Return whether the agent is within its limit for this tick."""
        if tick != self._tick:
            self._tick, self._votes = tick, Counter()
        self._votes[agent] += 1
        return self._votes[agent] <= rules.votes_per_tick

    def wait_reason(self, agent: str, is_newcomer: bool, vote: Vote, tick: int, rules: Rules) -> str:
        """Return why the agent may not open a ballot with this vote now, or an empty string if it may."""
        failures = self._failed_ballots.get((agent, "" if is_newcomer else vote.actuator))
        if failures is None:
            return ""
        wait_ticks = rules.cooldown_ticks * min(2 ** (failures.count - 1), MAX_COOLDOWNS)
        if tick < failures.tick + wait_ticks:
            result = "failed at the vote" if failures.content is not None else "became advice that no person approved"
            return f"its last {failures.count} {result}; it may open the next one at tick {failures.tick + wait_ticks}"
        if failures.content == _content_of(vote) and tick < failures.tick + REPEAT_COOLDOWNS * rules.cooldown_ticks:
            return f"the same proposal, with the same reasons, failed at tick {failures.tick}"
        return ""

    def record_failure(self, agent: str, is_newcomer: bool, vote: Vote, tick: int) -> None:
        """Record that the agent's ballot failed at the vote."""
        self._add_wait(agent, "" if is_newcomer else vote.actuator, tick, _content_of(vote))

    def record_advice(self, newcomer: str, tick: int) -> None:
        """Record that a newcomer's ballot became advice. The wait grows until a person approves such advice."""
        self._add_wait(newcomer, "", tick, None)

    def _add_wait(self, agent: str, actuator: str, tick: int, content: _Content | None) -> None:
        previous = self._failed_ballots.get((agent, actuator))
        count = previous.count if previous else 0
        if previous is None or previous.tick != tick:  # the ballots of a plan close together and count once
            count = min(count, 30) + 1  # keeps 2**count small
        self._failed_ballots[agent, actuator] = _FailedBallots(count, tick, content)

    def record_success(self, agent: str, actuator: str) -> None:
        """Record that the agent's ballot passed the vote, or that a person approved its advice."""
        self._failed_ballots.pop((agent, actuator), None)
        self._failed_ballots.pop((agent, ""), None)

    def add_change(self, decision: Decision, spec: ActuatorSpec | None, rules: Rules) -> None:
        """Record a change that the agents' votes adopted."""
        if spec is None or spec.kind not in ("scalar", "choice"):
            return
        new_direction, reversals = direction(decision.before, decision.value), 0
        last = self._newest_changes.get(spec.name)
        if last is not None and decision.tick - last.tick <= REVERSAL_WINDOWS * rules.outcome_ticks:
            reversals = last.reversals + int(_is_reversal(spec, last, new_direction, decision.value))
        self._newest_changes[spec.name] = _NewestChange(decision.tick, new_direction, decision.before, reversals)

    def frozen_reason(self, actuator: str, rules: Rules) -> str:
        """Return why the actuator is frozen, so that a person has to decide, or an empty string if it is not."""
        newest = self._newest_changes.get(actuator)
        if newest is None or newest.reversals < rules.reversals:
            return ""
        remedy = f"set it yourself, or run `oven-controller autonomy auto {actuator}` to let the agents continue"
        return f"{actuator} changed direction {newest.reversals} times, last at tick {newest.tick}: {remedy}"

    def thaw(self, actuator: str) -> None:
        """Let the agents change a frozen actuator again, or all actuators if `actuator` is empty."""
        for name in [actuator] if actuator else list(self._newest_changes):
            self._newest_changes.pop(name, None)


def _is_reversal(spec: ActuatorSpec, last: _NewestChange, new_direction: str, value: Value) -> bool:
    if spec.kind == "choice":
        return show(value) == show(last.before)
    return new_direction != last.direction


def _content_of(vote: Vote) -> _Content:
    return show(vote.value), vote.rationale, vote.evidence
