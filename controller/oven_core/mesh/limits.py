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

**Newcomers' attention.** All newcomers together have one agent's share of ballots: only one of them has open ballots at
a time, and they share one wait. After it, each newcomer that asked for a turn gets its own tick, in the order in which
they asked. So many newcomers cause no more failed ballots than one, and a single honest one among them gets its turn.
An agent whose newest advice a person approved does not wait.

**Reversals.** If an actuator changes direction `rules.reversals` times, each time within REVERSAL_WINDOWS outcome
windows of the previous change, one agent oscillates or two agents disagree. An agent whose own proposals moved it back
and forth is suspended: it has a newcomer's rights on this actuator, and the others continue. Of several such agents,
the one with the lowest reputation is suspended. If each agent pulls in one direction only, the actuator is frozen.
Either way, a person has to decide from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_core.mesh.actuator_values import direction, show
from oven_core.mesh.measurements import is_sound
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Receipt, TallyLine, Value, Vote
from oven_core.protocol.rules import ALL, Rules

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


_NEWCOMERS: Final = ("", "")
"""Key of the failed ballots of all newcomers together."""

_Content: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A proposal's value, rationale and evidence, which identify a repeated proposal."""


@dataclass(slots=True)
class _FailedBallots:
    """The consecutive failed ballots of one agent on one actuator, or of newcomers on all actuators."""

    count: int
    tick: int
    """Tick of the newest failed ballot."""
    content: _Content | None
    """Content of the newest proposal; None if it became advice, which may be repeated."""

    def next_tick(self, rules: Rules) -> int:
        """Return the tick at which the next ballot may be opened."""
        return self.tick + rules.cooldown_ticks * min(1 << (self.count - 1), MAX_COOLDOWNS)


@dataclass(slots=True)
class _NewestChange:
    """The newest change of an actuator, or the newest one that a certain agent proposed."""

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
    _failed_ballots: dict[tuple[str, str], _FailedBallots] = field(default_factory=dict)
    """By agent and actuator. A newcomer has one entry for all actuators, and all newcomers share one for their wait."""
    _turns: dict[str, None] = field(default_factory=dict)
    """The newcomers that asked for a turn, in the order in which they asked first."""
    _approved: set[str] = field(default_factory=set)
    """Agents whose newest advice a person approved."""
    _newest_changes: dict[tuple[str, str], _NewestChange] = field(default_factory=dict)
    """By actuator and proposer; the newest change of an actuator has no proposer."""
    _suspensions: dict[tuple[str, str], str] = field(default_factory=dict)
    """(agent, actuator) → why the agent has only a newcomer's rights there."""

    def count_vote(self, agent: str, tick: int, rules: Rules) -> bool:
        """Count a vote. Return whether the agent is within its limit for this tick."""
        if tick != self._tick:
            self._tick, self._votes = tick, Counter()
        self._votes[agent] += 1
        return self._votes[agent] <= rules.votes_per_tick

    def wait_reason(self, agent: str, vote: Vote, tick: int, rules: Rules) -> str:
        """Return why a trusted agent may not open a ballot with this vote, or an empty string if it may."""
        failures = self._failed_ballots.get((agent, vote.actuator))
        if failures is None:
            return ""
        next_tick = failures.next_tick(rules)
        if tick < next_tick:
            return f"its last {failures.count} failed at the vote; it may open the next one at tick {next_tick}"
        return _repeat_reason(failures, vote, tick, rules)

    def request_turn(self, newcomer: str, vote: Vote, tick: int, rules: Rules, ballot: BallotOpened | None) -> str:
        """Return why a newcomer may not open a ballot with this vote, or an empty string if it may. Then it had its
        turn. `ballot` is the open ballot of a newcomer that is not in the same plan, if there is one."""
        shared, own = self._failed_ballots.get(_NEWCOMERS), self._failed_ballots.get((newcomer, ""))
        if own is not None and (reason := _repeat_reason(own, vote, tick, rules)):
            return reason
        if ballot is None or ballot.opened_by != newcomer:
            self._turns.setdefault(newcomer)
        if ballot is not None:
            return f"an untrusted agent's ballot on {ballot.actuator} is open; it may open one after that has closed"
        if shared is not None and newcomer not in self._approved:
            next_tick = shared.next_tick(rules) + list(self._turns).index(newcomer)
            if tick < next_tick:
                return (
                    f"the last {shared.count} ballots of untrusted agents failed at the vote or became advice that no "
                    f"person approved; it may open the next one at tick {next_tick}"
                )
        del self._turns[newcomer]
        return ""

    def record_failure(self, agent: str, is_newcomer: bool, vote: Vote, tick: int) -> None:
        """Record that the agent's ballot failed at the vote."""
        self._add_wait((agent, "" if is_newcomer else vote.actuator), tick, _content_of(vote))
        if is_newcomer:
            self._record_newcomers_failure(agent, tick)

    def record_advice(self, newcomer: str, tick: int) -> None:
        """Record that a newcomer's ballot became advice. The wait grows until a person approves such advice."""
        self._add_wait((newcomer, ""), tick, None)
        self._record_newcomers_failure(newcomer, tick)

    def _record_newcomers_failure(self, agent: str, tick: int) -> None:
        self._approved.discard(agent)
        self._add_wait(_NEWCOMERS, tick, None)

    def _add_wait(self, key: tuple[str, str], tick: int, content: _Content | None) -> None:
        previous = self._failed_ballots.get(key)
        count = previous.count if previous else 0
        # The ballots of a plan close together and count once. For newcomers they all count, because a plan may be long.
        if previous is None or previous.tick != tick or key == _NEWCOMERS:
            count = min(count, 30) + 1  # keeps the shift small
        self._failed_ballots[key] = _FailedBallots(count, tick, content)

    def record_success(self, agent: str, actuator: str) -> None:
        """Record that the agent's ballot passed the vote."""
        self._failed_ballots.pop((agent, actuator), None)

    def record_approval(self, agent: str) -> None:
        """Record that a person approved the agent's advice."""
        self._failed_ballots.pop((agent, ""), None)
        self._approved.add(agent)

    def add_change(
        self, spec: ActuatorSpec, before: Value, value: Value, lines: Sequence[TallyLine], tick: int, rules: Rules
    ) -> str:
        """Record a change that the agents' votes adopted, and suspend an agent that reversed its own changes.

        Return the reason for the suspension, or an empty string."""
        if spec.kind not in ("scalar", "choice"):
            return ""
        moved = direction(before, value)
        proposers = [
            line.agent
            for line in lines
            if line.stance == "propose" and line.weight > 0 and direction(before, line.value) == moved
        ]
        for proposer in ("", *proposers):
            last, reversals = self._newest_changes.get((spec.name, proposer)), 0
            if last is not None and tick - last.tick <= REVERSAL_WINDOWS * rules.outcome_ticks:
                reversals = last.reversals + int(_is_reversal(spec, last, moved, value))
            self._newest_changes[spec.name, proposer] = _NewestChange(tick, moved, before, reversals)
        if self._newest_changes[spec.name, ""].reversals < rules.reversals:
            return ""
        return self._suspend(spec.name, {line.agent: line.reputation for line in lines}, tick, rules)

    def _suspend(self, actuator: str, reputations: Mapping[str, float], tick: int, rules: Rules) -> str:
        """Suspend the agent that moved the actuator back and forth; the one with the lowest reputation of several."""
        oldest_tick = tick - REVERSAL_WINDOWS * rules.outcome_ticks
        flips = {
            agent: change.reversals
            for (name, agent), change in self._newest_changes.items()
            if name == actuator and agent and change.reversals and change.tick >= oldest_tick
        }
        lowest = min((reputations.get(agent, 1.0) for agent in flips), default=0.0)
        reasons = {
            agent: f"{agent} changed the direction of {actuator} {count} times, last at tick {tick}"
            for agent, count in flips.items()
            if reputations.get(agent, 1.0) <= lowest
        }
        for agent, reason in reasons.items():
            self._suspensions[agent, actuator] = reason
        if reasons:
            self._forget_changes(actuator)
        return "; ".join(f"{reason}, so its votes on it have no weight any longer" for reason in reasons.values())

    def suspension(self, agent: str, actuator: str) -> str:
        """Return why the agent has only a newcomer's rights on the actuator, or an empty string if it is not
        suspended."""
        return self._suspensions.get((agent, actuator), "")

    def lift_suspensions(self, agent: str, actuators: Iterable[str]) -> None:
        """Lift the agent's suspensions on these actuators, or all of them if `actuators` is empty or has ALL."""
        names = set(actuators)
        for key in list(self._suspensions):
            if key[0] == agent and (not names or ALL in names or key[1] in names):
                del self._suspensions[key]

    def frozen_reason(self, actuator: str, rules: Rules) -> str:
        """Return why the actuator is frozen, so that a person has to decide, or an empty string if it is not."""
        newest = self._newest_changes.get((actuator, ""))
        if newest is None or newest.reversals < rules.reversals:
            return ""
        remedy = f"set it yourself, or run `oven-controller autonomy auto {actuator}` to let the agents continue"
        return f"{actuator} changed direction {newest.reversals} times, last at tick {newest.tick}: {remedy}"

    def thaw(self, actuator: str) -> None:
        """Let all agents change an actuator again, or all actuators if `actuator` is empty."""
        self._forget_changes(actuator)
        for key in list(self._suspensions):
            if actuator in ("", key[1]):
                del self._suspensions[key]

    def _forget_changes(self, actuator: str) -> None:
        for key in list(self._newest_changes):
            if actuator in ("", key[0]):
                del self._newest_changes[key]


def _is_reversal(spec: ActuatorSpec, last: _NewestChange, new_direction: str, value: Value) -> bool:
    if spec.kind == "choice":
        return show(value) == show(last.before)
    return new_direction != last.direction


def _repeat_reason(failures: _FailedBallots, vote: Vote, tick: int, rules: Rules) -> str:
    if failures.content == _content_of(vote) and tick < failures.tick + REPEAT_COOLDOWNS * rules.cooldown_ticks:
        return f"the same proposal, with the same reasons, failed at tick {failures.tick}"
    return ""


def _content_of(vote: Vote) -> _Content:
    return show(vote.value), vote.rationale, vote.evidence
