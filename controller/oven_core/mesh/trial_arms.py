"""Further arms of a trial: proposals of its ballot that differ from the merged one, and the next plans of those who
proposed it.

Each is subject to the guardrails as if it had passed a vote, and left out where they would advise or reject it: nothing
but the trial speaks for it. So it is not adopted either where the trial cannot be made. The merged value is always the
first arm; after it come the values of the ballot, the heaviest first, then the plans that its proposers would try next,
for as long as there are steps to spend. Only a trial of one group of ballots has further arms: where something else was
decided at the same event, what it changes would stand against them.

Who proposed a value that is an arm by itself is judged by that arm, unless its vote is judged by the merged value
already; who offered a next plan, by its outcome and its own confidence in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oven_core.mesh import forecast, guardrails
from oven_core.mesh.actuator_values import (
    Fault,
    clip,
    direction,
    number,
    rounded,
    shaped,
    shares,
    show,
    variation,
)
from oven_core.mesh.ballots import Ballot, Refusal, proposed_value
from oven_core.mesh.change_requirements import spelt
from oven_core.mesh.forecast import Forecast
from oven_core.mesh.joint_proposals import Ruled
from oven_core.mesh.judging_metric import refuse_unjudged
from oven_core.mesh.outcomes import Outcomes
from oven_core.mesh.outputs import Output
from oven_core.mesh.state import State
from oven_core.mesh.tally import Tally
from oven_core.mesh.trials import Trials
from oven_core.protocol.messages import ActuatorSpec, Decision, NextPlan, TallyLine, Value, Vote
from oven_core.protocol.trial_messages import TrialStarted

APART = 0.1
"""Share of an actuator's range, on its own scale, by which two values differ enough to be compared: less than that a
trial of a few steps can hardly tell from noise. Of a simplex: the share that has to move."""
FACTOR = 1.5
"""The same where no range is announced."""


Decide: TypeAlias = Callable[[str, str, Literal["tried"], Value, str, tuple[TallyLine, ...], Forecast | None], Decision]
"""(ballot, actuator, verdict, value, reason, tally, forecast) → the decision, as the mesh makes every one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One change of an arm, as the guardrails leave it. `forecast`: None where nothing judges it."""

    spec: ActuatorSpec
    direction: str
    value: Value
    line: TallyLine
    forecast: Forecast | None


@dataclass(frozen=True, slots=True)
class Arm:
    """What one further arm would change, all of it together, and why."""

    parts: tuple[Part, ...]
    reason: str

    @property
    def changes(self) -> dict[str, Value]:
        return {part.spec.name: part.value for part in self.parts}


class TrialArms:
    """The further arms of the trial that is about to be ordered."""

    def __init__(self, state: State, outcomes: Outcomes, trials: Trials) -> None:
        self._state, self._outcomes, self._trials = state, outcomes, trials
        self._found: list[Arm] = []

    def collect(self, closing: Sequence[tuple[Ballot, Ruled]], busy: AbstractSet[str]) -> None:
        """Those of ballots that close together, before anything is decided of them. `busy`: actuators of other open
        ballots, which decide themselves."""
        tried = [(ballot, ruled) for ballot, ruled in closing if ruled.verdict == "tried"]
        if not tried:
            return
        arms: list[Mapping[str, Value]] = [{ballot.opened.actuator: ruled.value for ballot, ruled in tried}]
        self._found.clear()
        for arm in (*(self._rivals(*tried[0]) if len(closing) == 1 else ()), *self._plans(tried, busy)):
            if all(self._differ(arm.changes, other) for other in arms):
                self._found.append(arm)
                arms.append(arm.changes)

    def order(self, emitted: Sequence[Output], decide: Decide, next_id: Callable[[], str]) -> TrialStarted | None:
        """The trial of what was proposed at this event, with further arms as long as there are steps for them; None
        where nothing was. `emitted`: at this event."""
        found, self._found = self._found, []
        decided = (output.message for output in emitted if isinstance(output.message, Decision))
        if found and self._trials.proposed == [d.id for d in decided if d.verdict != "rejected"]:
            for arm in found:
                if not self._trials.obstacle(arm.changes):
                    self._trials.propose([self._decided(part, arm, decide) for part in arm.parts], passed=False)
        return self._trials.order(next_id)

    def _decided(self, part: Part, arm: Arm, decide: Decide) -> tuple[str, ActuatorSpec, str, Value]:
        made = decide("", part.spec.name, "tried", part.value, arm.reason, (part.line,), part.forecast)
        return made.id, part.spec, part.direction, part.value

    def _rivals(self, ballot: Ballot, ruled: Ruled) -> Iterator[Arm]:
        """The values that trusted agents proposed with weight on this ballot."""
        spec = self._state.specs[ballot.opened.actuator]
        first = forecast.forecast(self._state, ballot, spec, ruled.lines)
        judged = {stake.agent for stake in first.stakes if stake.stance != "against"} if first else set()
        for line in _proposers(ruled.lines):
            reason = f"{line.agent} proposed {show(line.value)}; a trial compares it with {show(ruled.value)}"
            opened = line.agent == ballot.opened.opened_by
            arm = self._arm({spec.name: line.value}, line, reason, opened=opened, judged=line.agent not in judged)
            if arm is not None:
                yield arm

    def _plans(self, tried: Sequence[tuple[Ballot, Ruled]], busy: AbstractSet[str]) -> Iterator[Arm]:
        """What those who proposed the change would try next, the heaviest agent's first."""
        voted = [
            (line, ballot.casts[line.agent].vote, ballot.opened.opened_by)
            for ballot, ruled in tried
            for line in _proposers(ruled.lines)
            if direction(ruled.before, line.value) == ruled.direction
        ]
        for line, vote, opener in sorted(voted, key=lambda one: (-one[0].weight, one[0].agent)):
            for plan in vote.otherwise:
                if busy.isdisjoint(plan.changes) and self._may(line.agent, vote, plan):
                    named = f" ({clip(plan.remedy, 64)})" if plan.remedy else ""
                    reason = f"{line.agent} would try this next{named}; a trial compares it with the proposal"
                    offered = self._line(line.agent, plan)
                    arm = self._arm(plan.changes, offered, reason, opened=line.agent == opener, judged=True)
                    if arm is not None:
                        yield arm

    def _may(self, author: str, vote: Vote, plan: NextPlan) -> bool:
        """Whether each part could stand as a proposal of this agent, and its word binds there."""
        for name, value in plan.changes.items():
            asked = vote.model_copy(update={"actuator": name, "value": value})
            found = proposed_value(author, asked, self._state.agents.get(author), self._state.specs)
            if isinstance(found, Refusal) or refuse_unjudged(author, asked, self._state) is not None:
                return False
            standing = self._state.standing(author, name)
            if standing.shadow or standing.newcomer:
                return False
        return True

    def _line(self, agent: str, plan: NextPlan) -> TallyLine:
        reputation = rounded(self._state.reputations.get(agent, 1.0))
        weight = rounded(reputation * plan.confidence)
        return TallyLine(
            agent=agent, stance="propose", confidence=plan.confidence, reputation=reputation, weight=weight
        )

    def _arm(
        self, changes: Mapping[str, Value], line: TallyLine, reason: str, *, opened: bool, judged: bool
    ) -> Arm | None:
        """None where something stands against a part of it. The values are of the actuators' form and in bounds."""
        state, parts, beside = self._state, list[Part](), list[str]()
        for name, asked in changes.items():
            spec, before = state.specs[name], state.effective.get(name)
            value = shaped(spec, asked)
            if isinstance(value, Fault):
                return None
            way = direction(before, value)
            ruling = guardrails.rule(state, spec, Tally(True, value, way, (line,), ""), beside)
            if ruling.verdict != "adopted" or not spec.has_outcome:
                return None
            value, way = ruling.value, direction(before, ruling.value)
            if self._trials.lost(name, way) or self._outcomes.control_blocks(name, way):
                return None
            staked = forecast.of_one(state, name, line, opened=opened, judged=judged)
            parts.append(Part(spec, way, value, line.model_copy(update={"value": value}), staked))
            beside.append(spelt(name, way))
        return Arm(tuple(parts), reason)

    def _differ(self, one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
        """Whether two arms change different things, or one of them by another value."""
        if one.keys() != other.keys():
            return True
        effective, specs = self._state.effective, self._state.specs
        return any(differ(specs[name], effective.get(name), one[name], other[name]) for name in one)


def differ(spec: ActuatorSpec, before: Value, one: Value, other: Value) -> bool:
    """Whether two values of one actuator are worth comparing: another direction, another choice, APART or more of a
    scalar's range or of a simplex, any other argument of an action."""
    if spec.kind == "simplex":
        return rounded(variation(shares(one), shares(other))) >= APART
    a, b = number(one), number(other)
    if spec.kind != "scalar" or a is None or b is None:
        return one != other
    if a == b or direction(before, a) != direction(before, b):
        return a != b
    low, high = spec.low, spec.high
    if spec.scale == "log":
        span = math.log(high / low) if low and high and high > low > 0 else math.log(FACTOR) / APART
        return rounded(abs(math.log(a) - math.log(b))) >= rounded(APART * span)
    if low is None or high is None:
        return max(abs(a), abs(b)) >= rounded(FACTOR * min(abs(a), abs(b)))
    return rounded(abs(a - b)) >= rounded(APART * (high - low))


def _proposers(lines: Sequence[TallyLine]) -> list[TallyLine]:
    """Whose proposal binds: trusted, with weight, no shadow; the heaviest first."""
    binding = [
        line for line in lines if line.stance == "propose" and line.weight > 0 and not (line.shadow or line.newcomer)
    ]
    return sorted(binding, key=lambda line: (-line.weight, line.agent))
