"""Plans: proposals of one agent on several actuators, which are adopted all together or not at all.

A rollback without the cut that belongs to it only fails again, and a cut without its rollback keeps the harm. So the
ballots that a plan ties together close together, and a proposal counts only where every other part of its plan is
adopted in the same breath; what passes without it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from oven_core.mesh.actuator_values import clip, direction
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.change_requirements import spelt
from oven_core.mesh.state import State
from oven_core.protocol.messages import TallyLine, Value, Vote


@dataclass(frozen=True, slots=True)
class Ruled:
    """What tally and guardrails say of one ballot. `before` is the effective value; `note` says what refused it, and is
    empty where nothing did."""

    verdict: str
    before: Value
    value: Value
    direction: str
    reason: str
    note: str
    lines: tuple[TallyLine, ...]
    newcomers: bool = False
    """Newcomers alone are for it: it is advised, whatever becomes of what it is tied to."""
    veto: str = ""
    """Whose veto rejected it."""
    passed: bool = False
    """The vote passed, whatever the guardrails said."""


Rule = Callable[[Ballot, frozenset[str], Sequence[str]], Ruled]
"""(ballot, agents whose proposals do not count, changes that are adopted beside it) → what is said of it."""


def others(vote: Vote) -> tuple[str, ...]:
    """The other actuators of a proposal's plan."""
    return tuple(name for name in vote.plan if name != vote.actuator) if vote.stance == "propose" else ()


def linked(ballots: Mapping[str, Ballot], actuator: str, state: State) -> list[str]:
    """The actuators whose open ballots share a plan with this one's, directly or through others, in order of opening;
    its own among them."""
    parts = {name: {*_tied(ballots, name, state)} for name in ballots}
    found, new = set[str](), {actuator}
    while new:
        found |= new
        pointed = {part for name in new for part in parts[name]}
        new = (pointed | {name for name in ballots if new & parts[name]}) - found
    return [name for name in ballots if name in found]


def complete(ballots: Mapping[str, Ballot], actuator: str, state: State, newcomers: bool = True) -> bool:
    """Whether the ballot has every vote, and every proposal on it the rest of its plan, so far as its agent has not
    said by now that it is done without. Without `newcomers`: every vote that has weight."""
    ballot = ballots[actuator]
    return ballot.complete(state, newcomers) and not any(
        part not in ballots or name not in ballots[part].casts
        for name, cast in ballot.casts.items()
        if newcomers or ballot.binds(state, name)
        for part in others(cast.vote)
        if not ballot.passed(state, name)
    )


def _tied(ballots: Mapping[str, Ballot], actuator: str, state: State) -> Iterator[str]:
    """The actuators of other open ballots that proposals on this one tie it to."""
    for name, cast in ballots[actuator].casts.items():
        for part in others(cast.vote):
            if part in ballots and ballots[actuator].binds(state, name) and ballots[part].binds(state, name):
                yield part


def settled(ballots: Sequence[Ballot], rule: Rule) -> list[tuple[Ballot, Ruled]]:
    """What becomes of ballots that close together. Proposals are taken out until every one that counts belongs to a
    plan that is whole; taking out one can break another, so it is asked again until nothing breaks."""
    without: dict[str, frozenset[str]] = {ballot.opened.actuator: frozenset() for ballot in ballots}
    first: dict[str, Ruled] = {}  # as they were before any plan broke
    whys: dict[str, str] = {}  # why the first did that took votes from one
    while True:
        rulings: dict[str, Ruled] = {}
        beside: list[str] = []
        for ballot in ballots:
            name = ballot.opened.actuator
            rulings[name] = rule(ballot, without[name], tuple(beside))
            if rulings[name].verdict != "rejected":
                beside.append(spelt(name, rulings[name].direction))
        first = first or rulings
        broken = [
            (ballot, agent, why)
            for ballot in ballots
            for agent, cast in ballot.casts.items()
            if agent not in without[ballot.opened.actuator] and (why := _broken(agent, cast.vote, ballots, rulings))
        ]
        if not broken:
            break
        for ballot, agent, why in broken:
            name = ballot.opened.actuator
            without[name] |= {agent}
            whys.setdefault(name, why)
    if any(ruled.verdict == "advised" and not ruled.newcomers for ruled in rulings.values()):
        rulings = {name: _advised(ruled) for name, ruled in rulings.items()}
    return [
        (ballot, _told(rulings[name], first[name], whys.get(name, "")))
        for ballot in ballots
        for name in [ballot.opened.actuator]
    ]


def _broken(agent: str, vote: Vote, ballots: Sequence[Ballot], rulings: Mapping[str, Ruled]) -> str:
    """What the rest of the plan lacks; empty if nothing."""
    by_actuator = {ballot.opened.actuator: ballot for ballot in ballots}
    for part in others(vote):
        if part not in rulings or agent not in by_actuator[part].casts:
            return f"{clip(part, 120)} is not on the ballot with it"
        if rulings[part].verdict == "rejected":
            return f"{part} is refused ({clip(rulings[part].note, 200)})"
        if direction(rulings[part].before, by_actuator[part].casts[agent].value) != rulings[part].direction:
            return f"{part} goes the other way"
    return ""


def _advised(ruled: Ruled) -> Ruled:
    """A person approves the whole, so that no part of it goes ahead of the others."""
    return replace(ruled, verdict="advised") if ruled.verdict == "adopted" else ruled


def _told(ruled: Ruled, first: Ruled, why: str) -> Ruled:
    """With the reason that holds: what refused it at first, or what broke the plan for whose sake it is refused."""
    if ruled.verdict != "rejected" or not why or first.verdict == "rejected":
        return first if ruled.verdict == first.verdict == "rejected" else ruled
    note = f"a plan is adopted whole or not at all: {why}"
    return replace(ruled, value=first.value, reason=f"{first.reason}; {note}", note=note)
