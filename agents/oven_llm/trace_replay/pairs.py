"""Preference pairs from what teachers would have done at a student's own states. Pure.

Two rules, for a majority of at least two families: against the student, its action is preferred to the student's; with
the student, the student's is preferred to the commonest of the minority. Teachers of one family are one voter: they err
alike, so their agreeing says less. A majority is popular, and not therefore right: where an environment can try the
actions, their outcomes tell (`Reply.outcome`), and equivalent actions make no pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_runs.traces.comparable_actions import Action, Unusable, action
from oven_runs.traces.records import Message, Pair, Reply, Rule, Tool, Trace, TraceStep

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


LEAST_FAMILIES: Final = 2
"""That must agree: what one says alone is its opinion."""
Key: TypeAlias = tuple[str, int]
"""A trace and a step."""


@dataclass(frozen=True)
class MinedPair:
    """A pair, and what a random pair of the same state could be made of."""

    pair: Pair
    chosen: Action
    rejected: Action
    candidates: tuple[Action, ...]
    """All different actions of the student and the teachers at the state, one of each class, in their order."""
    messages: tuple[Message, ...] = ()
    """The candidates, as they were written."""
    earlier: frozenset[Action] = frozenset()
    """What the student had done before."""


@dataclass
class Mined:
    """The pairs of a file, and why other states have none."""

    pairs: list[MinedPair] = field(default_factory=list)
    traces: int = 0
    states: int = 0
    rules: Counter[Rule] = field(default_factory=Counter)
    abstentions: Counter[str] = field(default_factory=Counter)
    """Why a state made no pair: not asked, no vote, one family, split, all agree, equivalent, or why the student's own
    action cannot be compared."""
    ignored: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    """Votes by family."""
    unknown: int = 0
    """Replies to traces or steps that are not there."""


def grouped(replies: Iterable[Reply], teachers: Sequence[str] = ()) -> dict[Key, list[Reply]]:
    """Replies by trace and step; of `teachers` only, unless that is empty."""
    found: defaultdict[Key, list[Reply]] = defaultdict(list)
    for reply in replies:
        if not teachers or reply.teacher in teachers:
            found[reply.trace, reply.step].append(reply)
    return dict(found)


def mined(traces: Iterable[Trace], replies: Mapping[Key, Sequence[Reply]]) -> Mined:
    """All pairs of these traces."""
    found = Mined()
    used: set[Key] = set()
    for trace in traces:
        found.traces += 1
        earlier: set[Action] = set()
        for at, (step, digest) in enumerate(zip(trace.steps, trace.digests(), strict=True)):
            found.states += 1
            given = replies.get((trace.id, at), ())
            used.add((trace.id, at))
            made = ballot(step, trace.tools, digest, given)
            found.ignored += made.ignored
            found.families.update(made.votes.keys())
            decided = decide(made, asked=bool(given))
            if isinstance(decided, str):
                found.abstentions[decided] += 1
            else:
                found.rules[decided.rule] += 1
                found.pairs.append(_pair(trace, at, made, decided, frozenset(earlier)))
            if isinstance(made.student, Said):
                earlier.add(made.student.action)
    found.unknown = sum(len(given) for key, given in replies.items() if key not in used)
    return found


@dataclass(frozen=True)
class Decided:
    """The classes of a pair, and the families for the majority's."""

    rule: Rule
    chosen: int
    rejected: int
    majority: int


def decide(made: Ballot, *, asked: bool = True) -> Decided | str:
    """The pair that a ballot makes, or why it makes none."""
    if isinstance(made.student, Unusable):
        return f"student: {made.student.kind}"
    if not asked:
        return "not asked"
    if len(made.votes) < LEAST_FAMILIES:
        return "one family" if made.votes else "no vote"
    counts = Counter(vote.of for vote in made.votes.values())
    (majority, votes), *others = sorted(counts.items(), key=lambda one: (-one[1], made.said[one[0]].action))
    if votes < LEAST_FAMILIES or 2 * votes <= len(made.votes):
        return "split"
    student = made.student.of
    if majority != student:
        return Decided("teachers_over_student", majority, student, majority)
    if not others:
        return "equivalent" if student in made.several_forms else "all agree"
    return Decided("student_over_minority", student, others[0][0], majority)


def _pair(trace: Trace, at: int, made: Ballot, decided: Decided, earlier: frozenset[Action]) -> MinedPair:
    step = trace.steps[at]
    chosen, rejected = made.said[decided.chosen], made.said[decided.rejected]
    other = decided.chosen if decided.rule == "teachers_over_student" else decided.rejected
    pair = Pair(
        trace=trace.id,
        step=at,
        task=trace.task.id,
        state=trace.state(at),
        tools=trace.tools,
        chosen=chosen.message,
        rejected=rejected.message,
        rule=decided.rule,
        votes=sum(vote.of == decided.majority for vote in made.votes.values()),
        voters=len(made.votes),
        share=round(sum(vote.shares.get(decided.chosen, 0.0) for vote in made.votes.values()) / len(made.votes), 6),
        teachers=tuple(sorted(name for vote in made.votes.values() if vote.of == other for name in vote.teachers)),
        sampled=step.sampled,
        policy=trace.policy,
    )
    said = sorted(made.said.values(), key=lambda one: one.action)
    candidates, messages = tuple(one.action for one in said), tuple(one.message for one in said)
    return MinedPair(pair, chosen.action, rejected.action, candidates, messages, earlier)
