"""Preference pairs from what teachers would have done at a student's own states. Pure.

Two rules, for a majority of at least two families: against the student, its action is preferred to the student's; with
the student, the student's is preferred to the commonest of the minority. Teachers of one family are one voter: they err
alike, so their agreeing says less. A majority is popular, and not therefore right: where an environment can try the
actions, their outcomes tell (`Reply.outcome`), and equivalent actions make no pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_llm.trace_replay.family_votes import Ballot, Said, ballot
from oven_runs.traces.comparable_actions import Action, Unusable
from oven_runs.traces.records import Message, Pair, Reply, Rule, Trace

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
