"""What the families of teachers would do at a state, from their replies: one vote a family. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from oven_runs.traces.comparable_actions import Action, Unusable, action
from oven_runs.traces.records import Message, Reply, Tool, TraceStep

OTHER_STATE: Final = "reply: to another state"
"""Why a reply counts for nothing whose state is not the step's."""


@dataclass(frozen=True)
class Said:
    """A usable action, and the class of equivalent ones that it is in."""

    action: Action
    message: Message
    of: int
    """The class: equal numbers are equivalent actions."""


@dataclass(frozen=True)
class Vote:
    """What a family would do: its commonest action."""

    of: int
    """The action's class."""
    shares: dict[int, float]
    """Class → its mean share of the family's samples."""
    teachers: tuple[str, ...]
    """Those whose commonest action it is."""


@dataclass
class Ballot:
    """A state: what the student did, and the votes."""

    student: Said | Unusable
    votes: dict[str, Vote]
    """By family. One whose commonest actions are as common has none."""
    said: dict[int, Said]
    """By class: the student's, else the first teacher's in the order of their names and samples."""
    several_forms: frozenset[int] = frozenset()
    """Classes with actions that differ in form, and not in their outcome."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Replies that count for nothing, by reason; families without a vote, too."""


def ballot(step: TraceStep, tools: Sequence[Tool], state: str, replies: Iterable[Reply]) -> Ballot:
    """The votes at a step whose state has the digest `state`; the order of the replies does not matter."""
    ignored: Counter[str] = Counter()
    usable = list(_usable(state, tools, replies, ignored))
    own = action(step.action, tools)
    numbers = _classes(
        [(made, reply.outcome) for reply, made in usable] + ([] if isinstance(own, Unusable) else [(own, step.outcome)])
    )
    said: dict[int, Said] = {}
    student: Said | Unusable = own if isinstance(own, Unusable) else Said(own, step.action, numbers[own])
    if isinstance(student, Said):
        said[student.of] = student
    by_family: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for reply, made in usable:
        number = numbers[made]
        assert reply.action is not None  # or it would not be usable
        said.setdefault(number, Said(made, reply.action, number))
        by_family[reply.family][reply.teacher].append(number)
    votes = {}
    for family in sorted(by_family):
        if (vote := _vote(by_family[family])) is not None:
            votes[family] = vote
        else:
            ignored["family: its commonest actions are as common"] += 1
    forms = Counter(numbers.values())
    return Ballot(student, votes, said, frozenset(one for one, count in forms.items() if count > 1), ignored)


def _usable(
    state: str, tools: Sequence[Tool], replies: Iterable[Reply], ignored: Counter[str]
) -> Iterable[tuple[Reply, Action]]:
    """One reply for each teacher and sample, an action before a failure."""
    seen: set[tuple[str, int]] = set()
    for reply in sorted(replies, key=lambda one: (one.teacher, one.sample, one.failure)):
        if reply.state != state:
            ignored[OTHER_STATE] += 1
            continue
        if (which := (reply.teacher, reply.sample)) in seen:
            if reply.action is not None:  # a failure was asked again
                ignored["reply: given twice"] += 1
            continue
        seen.add(which)
        if reply.action is None:
            ignored[f"failure: {reply.failure}"] += 1
            continue
        made = action(reply.action, tools)
        if isinstance(made, Unusable):
            ignored[f"reply: {made.kind}"] += 1
        else:
            yield reply, made


def _classes(found: Iterable[tuple[Action, str]]) -> dict[Action, int]:
    """Each action's class: two are in one if they have the same outcome, directly or by way of others."""
    first: dict[Hashable, Action] = {}
    of: dict[Action, Action] = {}

    def root(one: Action) -> Action:
        while of[one] is not one:
            one = of[one]
        return one

    for made, outcome in found:
        of.setdefault(made, made)
        if outcome:
            of[root(made)] = root(first.setdefault(outcome, made))
    numbers = {one: number for number, one in enumerate(sorted({root(one) for one in of}))}
    return {one: numbers[root(one)] for one in of}


def _vote(samples: dict[str, list[int]]) -> Vote | None:
    """Of a family's teachers, each of which counts as much as the others. None: two actions are as common."""
    shares: defaultdict[int, float] = defaultdict(float)
    for given in samples.values():
        for number, count in Counter(given).items():
            shares[number] += count / len(given) / len(samples)
    (first, most), *others = sorted(shares.items(), key=lambda one: (-one[1], one[0]))
    if others and others[0][1] >= most - 1e-9:
        return None
    agree = tuple(sorted(name for name, given in samples.items() if _commonest(given) == first))
    return Vote(first, dict(shares), agree)


def _commonest(given: Sequence[int]) -> int | None:
    (first, most), *others = Counter(given).most_common()
    return None if others and others[0][1] == most else first
