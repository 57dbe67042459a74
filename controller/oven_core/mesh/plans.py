"""Plans: one agent's proposals for several actuators, which the mesh adopts all together or not at all.

Some changes only work together. A rollback without a cut of the learning rate fails again, and a cut without the
rollback does not undo the harm. So the ballots of a plan close together, and a proposal counts only if every other part
of its plan is adopted at the same time. A change that passes even without the plan's proposal is still adopted.
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
    """The verdict of tally and guardrails on one ballot."""

    verdict: str
    before: Value
    """The effective value."""
    value: Value
    direction: str
    reason: str
    note: str
    """The reason for rejecting or limiting the change; empty if there is none."""
    lines: tuple[TallyLine, ...]
    only_newcomers: bool = False
    """Whether only newcomers support it. It is then advised regardless of the plan's other ballots."""
    veto: str = ""
    """The agent whose veto rejected it."""
    passed: bool = False
    """Whether the vote passed, regardless of what the guardrails decided."""


BallotRule = Callable[[Ballot, frozenset[str], Sequence[str]], BallotResult]
"""Function from (ballot, agents whose proposals do not count, changes adopted together with it) to its result."""


def other_parts(vote: Vote) -> tuple[str, ...]:
    """Return the other actuators of a proposal's plan."""
    return tuple(name for name in vote.plan if name != vote.actuator) if vote.stance == "propose" else ()


def linked_actuators(ballots: Mapping[str, Ballot], actuator: str, state: State) -> list[str]:
    """Return the actuators whose open ballots share a plan with this one, directly or through others.

    They are in order of opening, and include the actuator itself.
    """
    links = {name: {*_directly_linked(ballots, name, state)} for name in ballots}
    visited, frontier = set[str](), {actuator}
    while frontier:
        visited |= frontier
        outgoing = {part for name in frontier for part in links[name]}
        frontier = (outgoing | {name for name in ballots if frontier & links[name]}) - visited
    return [name for name in ballots if name in visited]


def is_complete(ballots: Mapping[str, Ballot], actuator: str, state: State, await_newcomers: bool = True) -> bool:
    """Return whether the ballot has every vote, and every proposal on it has the other parts of its plan. A missing
    part is ignored if its agent has finished the tick. If `await_newcomers` is False, only votes with weight are
    awaited."""
    ballot = ballots[actuator]
    return ballot.is_complete(state, await_newcomers) and not any(
        part not in ballots or name not in ballots[part].votes
        for name, cast in ballot.votes.items()
        if await_newcomers or ballot.may_link(state, name)
        for part in other_parts(cast.vote)
        if ballot.may_still_vote(state, name)
    )


def _directly_linked(ballots: Mapping[str, Ballot], actuator: str, state: State) -> Iterator[str]:
    """Yield the actuators of other open ballots that proposals link to this one."""
    for name, cast in ballots[actuator].votes.items():
        for part in other_parts(cast.vote):
            if part in ballots and ballots[actuator].may_link(state, name) and ballots[part].may_link(state, name):
                yield part


def settle(ballots: Sequence[Ballot], rule: BallotRule) -> list[tuple[Ballot, BallotResult]]:
    """Return the results of ballots that close together. Proposals are removed until every one that counts belongs to a
    complete plan. Removing one can break another plan, so the rule is applied again until none breaks."""
    excluded_agents: dict[str, frozenset[str]] = {ballot.opened.actuator: frozenset() for ballot in ballots}
    initial: dict[str, BallotResult] = {}  # results before any plan broke
    break_reasons: dict[str, str] = {}  # actuator → why the first plan with a part on its ballot broke
    while True:
        results: dict[str, BallotResult] = {}
        adopted_changes: list[str] = []
        for ballot in ballots:
            name = ballot.opened.actuator
            results[name] = rule(ballot, excluded_agents[name], tuple(adopted_changes))
            if results[name].verdict != "rejected":
                adopted_changes.append(change_name(name, results[name].direction))
        initial = initial or results
        broken_proposals = [
            (ballot, agent, reason)
            for ballot in ballots
            for agent, cast in ballot.votes.items()
            if agent not in excluded_agents[ballot.opened.actuator]
            and (reason := _break_reason(agent, cast.vote, ballots, results))
        ]
        if not broken_proposals:
            break
        for ballot, agent, reason in broken_proposals:
            name = ballot.opened.actuator
            excluded_agents[name] |= {agent}
            break_reasons.setdefault(name, reason)
    if any(result.verdict == "advised" and not result.only_newcomers for result in results.values()):
        # A person approves the whole plan, so that no part of it is applied before the others.
        results = {
            name: replace(result, verdict="advised") if result.verdict == "adopted" else result
            for name, result in results.items()
        }
    final: list[tuple[Ballot, BallotResult]] = []
    for ballot in ballots:
        name = ballot.opened.actuator
        final.append((ballot, _with_final_reason(results[name], initial[name], break_reasons.get(name, ""))))
    return final


def _break_reason(agent: str, vote: Vote, ballots: Sequence[Ballot], results: Mapping[str, BallotResult]) -> str:
    """Return why the rest of the plan cannot be adopted, or an empty string if it can."""
    by_actuator = {ballot.opened.actuator: ballot for ballot in ballots}
    for part in other_parts(vote):
        if part not in results or agent not in by_actuator[part].votes:
            return f"{agent} did not also propose {clip(part, 120)}"
        if results[part].verdict == "rejected":
            return f"{part} is rejected ({clip(results[part].note, 200)})"
        if direction(results[part].before, by_actuator[part].votes[agent].value) != results[part].direction:
            return f"{part} moves in the other direction"
    return ""


def _with_final_reason(result: BallotResult, initial: BallotResult, break_reason: str) -> BallotResult:
    """Return the result with its final reason: the first rejection, or the break in its plan."""
    if result.verdict != "rejected" or not break_reason or initial.verdict == "rejected":
        return initial if result.verdict == initial.verdict == "rejected" else result
    note = f"a plan is adopted as a whole or not at all: {break_reason}"
    return replace(result, value=initial.value, reason=f"{initial.reason}; {note}", note=note)
