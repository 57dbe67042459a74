"""Plans: one agent's proposals for several actuators, which the mesh adopts all together or not at all.

Some changes only work together. After a rollback without a cut of the learning rate, the run fails again, and a cut
without the rollback does not undo the harm. So the ballots of a plan close together. A proposal counts only if all the
other parts of its plan are adopted at the same time. A change that passes without the plan's proposal is still adopted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from oven_core.mesh.actuator_values import clip, direction
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.change_requirements import change_name
from oven_core.mesh.state import State
from oven_core.protocol.messages import TallyLine, Value, Vote


@dataclass(frozen=True, slots=True)
class BallotResult:
    """The verdict of the tally and the guardrails on one ballot."""

    verdict: str
    before: Value
    """The effective value before the change."""
    value: Value
    direction: str
    reason: str
    """The complete reason for the decision, which ends with `note`."""
    note: str
    """The reason for rejecting or limiting the change; empty if there is none."""
    lines: tuple[TallyLine, ...]
    only_newcomers: bool = False
    """Whether only newcomers support the change. Then it is advised regardless of the other ballots of the plan."""
    veto: str = ""
    """The agent whose veto rejected the change; empty without a veto."""
    passed: bool = False
    """Whether the vote passed, regardless of what the guardrails decided."""


ComputeResult = Callable[[Ballot, frozenset[str], Sequence[str]], BallotResult]
"""A function that returns the result of a ballot. Its other arguments are the agents whose proposals do not count, and
the changes that are adopted together with the ballot."""


def other_parts(vote: Vote) -> tuple[str, ...]:
    """Return the other actuators in the plan of a proposal."""
    return tuple(name for name in vote.plan if name != vote.actuator) if vote.stance == "propose" else ()


def linked_actuators(ballots: Mapping[str, Ballot], actuator: str, state: State) -> list[str]:
    """Return the actuators whose open ballots share a plan with this one, directly or through others.

    The result includes the actuator itself, and is in the order in which the ballots opened."""
    links = [{name, part} for name in ballots for part in _directly_linked(ballots, name, state)]
    group, previous_size = {actuator}, 0
    while len(group) > previous_size:
        previous_size = len(group)
        group = group.union(*(link for link in links if link & group))
    return [name for name in ballots if name in group]


def is_complete(ballots: Mapping[str, Ballot], actuator: str, state: State, await_newcomers: bool = True) -> bool:
    """Return whether no further vote is expected on the ballot, or on another part of a plan that it belongs to.

    If `await_newcomers` is False, only votes with weight are expected."""
    ballot = ballots[actuator]
    if not ballot.is_complete(state, await_newcomers):
        return False
    for agent, cast in ballot.votes.items():
        is_awaited = ballot.may_still_vote(state, agent) and (await_newcomers or ballot.may_link(state, agent))
        for part in other_parts(cast.vote):
            if is_awaited and (part not in ballots or agent not in ballots[part].votes):
                return False
    return True


def _directly_linked(ballots: Mapping[str, Ballot], actuator: str, state: State) -> Iterator[str]:
    """Yield the actuators of other open ballots that proposals link to this one."""
    for agent, cast in ballots[actuator].votes.items():
        for part in other_parts(cast.vote):
            if part in ballots and ballots[actuator].may_link(state, agent) and ballots[part].may_link(state, agent):
                yield part


def settle(ballots: Sequence[Ballot], compute_result: ComputeResult) -> list[tuple[Ballot, BallotResult]]:
    """Return the results of ballots that close together.

    Proposals whose plan is broken do not count. Excluding them can break other plans, so all results are computed again
    until no further plan breaks."""
    by_actuator = {ballot.opened.actuator: ballot for ballot in ballots}
    excluded_agents: dict[str, frozenset[str]] = {name: frozenset() for name in by_actuator}
    initial: dict[str, BallotResult] = {}  # results before any plan broke
    break_reasons: dict[str, str] = {}  # actuator → why the first broken plan on its ballot broke
    has_broken = True
    while has_broken:
        has_broken = False
        results: dict[str, BallotResult] = {}
        adopted_changes: list[str] = []
        for name, ballot in by_actuator.items():
            results[name] = compute_result(ballot, excluded_agents[name], tuple(adopted_changes))
            if results[name].verdict != "rejected":
                adopted_changes.append(change_name(name, results[name].direction))
        initial = initial or results
        for name, ballot in by_actuator.items():
            for agent, cast in ballot.votes.items():
                reason = _break_reason(agent, cast.vote, by_actuator, results)
                if reason and agent not in excluded_agents[name]:
                    has_broken = True
                    excluded_agents[name] |= {agent}
                    break_reasons.setdefault(name, reason)
    if any(result.verdict == "advised" and not result.only_newcomers for result in results.values()):
        # A person approves the whole plan, so that no part of it is applied before the others.
        results = {
            name: replace(result, verdict="advised") if result.verdict == "adopted" else result
            for name, result in results.items()
        }
    return [
        (ballot, _with_final_reason(results[name], initial[name], break_reasons.get(name, "")))
        for name, ballot in by_actuator.items()
    ]


def _break_reason(agent: str, vote: Vote, ballots: Mapping[str, Ballot], results: Mapping[str, BallotResult]) -> str:
    """Return why the other parts of the agent's plan are not adopted, or an empty string if they are."""
    for part in other_parts(vote):
        if part not in results or agent not in ballots[part].votes:
            return f"{agent} did not also propose {clip(part, 120)}"
        if results[part].verdict == "rejected":
            return f"{part} is rejected ({clip(results[part].note, 200)})"
        if direction(results[part].before, ballots[part].votes[agent].value) != results[part].direction:
            return f"{part} moves in the other direction"
    return ""


def _with_final_reason(result: BallotResult, initial: BallotResult, break_reason: str) -> BallotResult:
    """Return the result with its final reason: that of the first rejection, or why the plan broke."""
    if result.verdict != "rejected":
        return result
    if initial.verdict == "rejected":
        return initial
    if not break_reason:
        return result
    note = f"a plan is adopted as a whole or not at all: {break_reason}"
    return replace(result, value=initial.value, reason=f"{initial.reason}; {note}", note=note)
