"""Preference pairs from what teachers would have done at a student's own states. Pure.

Each family of teachers has one vote at a state, because teachers of one family make similar errors. A majority of at
least two families makes a pair. Against the student, its action is preferred to the student's. With the student, the
student's action is preferred to the most common action of the minority.

A majority is not necessarily right. If an environment can try the actions, their outcomes tell (`Reply.outcome`), and
equivalent actions make no pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_runs.traces.comparable_actions import Action, Unusable, action
from oven_runs.traces.records import Message, Pair, Reply, Rule, Tool, Trace, TraceStep

OTHER_STATE: Final = "reply: to another state"
"""Reason for ignoring a reply whose state is not the step's."""
MIN_FAMILIES: Final = 2
"""Families that must agree: a single family's vote is only its opinion."""
Key: TypeAlias = tuple[str, int]
"""A trace's id and a step's number."""


@dataclass(frozen=True)
class UsableAction:
    """An action that can be compared, and its class of equivalent actions."""

    action: Action
    message: Message
    group: int
    """The class. Actions with the same number are equivalent."""


@dataclass(frozen=True)
class FamilyVote:
    """A family's most common action."""

    group: int
    """The action's class."""
    shares: dict[int, float]
    """Class → its mean share of the family's samples."""
    teachers: tuple[str, ...]
    """Teachers whose most common action it is."""


@dataclass
class Ballot:
    """The student's action at a state, and the votes."""

    student: UsableAction | Unusable
    votes: dict[str, FamilyVote]
    """By family. A family with a tie between its most common actions has no vote."""
    actions: dict[int, UsableAction]
    """By class: the student's action, otherwise the first teacher's in the order of names and samples."""
    several_forms: frozenset[int] = frozenset()
    """Classes with actions that differ in form but not in outcome."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Ignored replies and families without a vote, by reason."""


def ballot(step: TraceStep, tools: Sequence[Tool], state: str, replies: Iterable[Reply]) -> Ballot:
    """Return the votes at a step whose state has the digest `state`. The order of the replies does not matter."""
    ignored: Counter[str] = Counter()
    usable = list(_usable_replies(state, tools, replies, ignored))
    student_action = action(step.action, tools)
    outcomes = [(reply_action, reply.outcome) for reply, reply_action in usable]
    if not isinstance(student_action, Unusable):
        outcomes.append((student_action, step.outcome))
    groups = _groups(outcomes)
    actions: dict[int, UsableAction] = {}
    student: UsableAction | Unusable
    if isinstance(student_action, Unusable):
        student = student_action
    else:
        student = UsableAction(student_action, step.action, groups[student_action])
        actions[student.group] = student
    by_family: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for reply, reply_action in usable:
        group = groups[reply_action]
        assert reply.action is not None  # otherwise it would not be usable
        actions.setdefault(group, UsableAction(reply_action, reply.action, group))
        by_family[reply.family][reply.teacher].append(group)
    votes = {}
    for family in sorted(by_family):
        if (vote := _vote(by_family[family])) is not None:
            votes[family] = vote
        else:
            ignored["family: a tie between its most common actions"] += 1
    forms = Counter(groups.values())
    several_forms = frozenset(group for group, count in forms.items() if count > 1)
    return Ballot(student, votes, actions, several_forms, ignored)


def _usable_replies(
    state: str, tools: Sequence[Tool], replies: Iterable[Reply], ignored: Counter[str]
) -> Iterable[tuple[Reply, Action]]:
    """Yield one reply per teacher and sample. An action takes precedence over a failure."""
    seen: set[tuple[str, int]] = set()
    for reply in sorted(replies, key=lambda reply: (reply.teacher, reply.sample, reply.failure)):
        if reply.state != state:
            ignored[OTHER_STATE] += 1
            continue
        if (sample := (reply.teacher, reply.sample)) in seen:
            if reply.action is not None:  # otherwise it is a failure that was asked again
                ignored["reply: given twice"] += 1
            continue
        seen.add(sample)
        if reply.action is None:
            ignored[f"failure: {reply.failure}"] += 1
            continue
        comparable = action(reply.action, tools)
        if isinstance(comparable, Unusable):
            ignored[f"reply: {comparable.kind}"] += 1
        else:
            yield reply, comparable


def _groups(outcomes: Iterable[tuple[Action, str]]) -> dict[Action, int]:
    """Return each action's class. Two actions are in one class if they have the same outcome, directly or through
    others."""
    first_with: dict[Hashable, Action] = {}
    parent: dict[Action, Action] = {}

    def root(member: Action) -> Action:
        while parent[member] is not member:
            member = parent[member]
        return member

    for comparable, outcome in outcomes:
        parent.setdefault(comparable, comparable)
        if outcome:
            parent[root(comparable)] = root(first_with.setdefault(outcome, comparable))
    numbers = {member: number for number, member in enumerate(sorted({root(member) for member in parent}))}
    return {member: numbers[root(member)] for member in parent}


def _vote(samples: dict[str, list[int]]) -> FamilyVote | None:
    """Return the vote of a family, whose teachers all count the same; None for a tie. `samples`: classes by teacher."""
    shares: defaultdict[int, float] = defaultdict(float)
    for groups in samples.values():
        for group, count in Counter(groups).items():
            shares[group] += count / len(groups) / len(samples)
    (first, largest), *others = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    if others and others[0][1] >= largest - 1e-9:
        return None
    agreeing = tuple(sorted(name for name, groups in samples.items() if _most_common(groups) == first))
    return FamilyVote(first, dict(shares), agreeing)


def _most_common(groups: Sequence[int]) -> int | None:
    (first, largest), *others = Counter(groups).most_common()
    return None if others and others[0][1] == largest else first


@dataclass(frozen=True)
class MinedPair:
    """A pair, and the actions that a random pair of the same state could be made of."""

    pair: Pair
    chosen: Action
    rejected: Action
    candidates: tuple[Action, ...]
    """All different actions of the student and the teachers at the state, one per class, in their order."""
    messages: tuple[Message, ...] = ()
    """The candidates as they were written."""
    earlier: frozenset[Action] = frozenset()
    """The student's actions before this step."""


@dataclass
class Mined:
    """The pairs of a file, and why other states have none."""

    pairs: list[MinedPair] = field(default_factory=list)
    traces: int = 0
    states: int = 0
    rules: Counter[Rule] = field(default_factory=Counter)
    abstentions: Counter[str] = field(default_factory=Counter)
    """States without a pair by reason: not asked, no vote, one family, split, all agree, equivalent, or why the
    student's action cannot be compared."""
    ignored: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    """Votes by family."""
    unknown: int = 0
    """Replies to traces or steps that do not exist."""


def grouped(replies: Iterable[Reply], teachers: Sequence[str] = ()) -> dict[Key, list[Reply]]:
    """Return replies by trace and step: those of `teachers`, or all if that is empty."""
    by_state: defaultdict[Key, list[Reply]] = defaultdict(list)
    for reply in replies:
        if not teachers or reply.teacher in teachers:
            by_state[reply.trace, reply.step].append(reply)
    return dict(by_state)


def mined(traces: Iterable[Trace], replies: Mapping[Key, Sequence[Reply]]) -> Mined:
    """Return all pairs of these traces."""
    result = Mined()
    states: set[Key] = set()
    for trace in traces:
        result.traces += 1
        earlier: set[Action] = set()
        for number, (step, digest) in enumerate(zip(trace.steps, trace.digests(), strict=True)):
            result.states += 1
            state_replies = replies.get((trace.id, number), ())
            states.add((trace.id, number))
            votes = ballot(step, trace.tools, digest, state_replies)
            result.ignored += votes.ignored
            result.families.update(votes.votes.keys())
            decision = decide(votes, has_replies=bool(state_replies))
            if isinstance(decision, str):
                result.abstentions[decision] += 1
            else:
                result.rules[decision.rule] += 1
                result.pairs.append(_pair(trace, number, votes, decision, frozenset(earlier)))
            if isinstance(votes.student, UsableAction):
                earlier.add(votes.student.action)
    result.unknown = sum(len(strangers) for key, strangers in replies.items() if key not in states)
    return result


@dataclass(frozen=True)
class PairDecision:
    """The classes of a pair's actions, and the class that the majority voted for."""

    rule: Rule
    chosen: int
    rejected: int
    majority: int


def decide(votes: Ballot, *, has_replies: bool = True) -> PairDecision | str:
    """Return the pair that a ballot makes, or the reason why it makes none."""
    if isinstance(votes.student, Unusable):
        return f"student: {votes.student.kind}"
    if not has_replies:
        return "not asked"
    if len(votes.votes) < MIN_FAMILIES:
        return "one family" if votes.votes else "no vote"
    counts = Counter(vote.group for vote in votes.votes.values())
    (majority, count), *others = sorted(counts.items(), key=lambda item: (-item[1], votes.actions[item[0]].action))
    if count < MIN_FAMILIES or 2 * count <= len(votes.votes):
        return "split"
    student = votes.student.group
    if majority != student:
        return PairDecision("teachers_over_student", majority, student, majority)
    if not others:
        return "equivalent" if student in votes.several_forms else "all agree"
    return PairDecision("student_over_minority", student, others[0][0], majority)


def _pair(trace: Trace, number: int, ballot: Ballot, decision: PairDecision, earlier: frozenset[Action]) -> MinedPair:
    step, votes = trace.steps[number], ballot.votes.values()
    chosen, rejected = ballot.actions[decision.chosen], ballot.actions[decision.rejected]
    of_teachers = decision.chosen if decision.rule == "teachers_over_student" else decision.rejected
    pair = Pair(
        trace=trace.id,
        step=number,
        task=trace.task.id,
        state=trace.state(number),
        tools=trace.tools,
        chosen=chosen.message,
        rejected=rejected.message,
        rule=decision.rule,
        votes=sum(vote.group == decision.majority for vote in votes),
        voters=len(votes),
        share=round(sum(vote.shares.get(decision.chosen, 0.0) for vote in votes) / len(votes), 6),
        teachers=tuple(sorted(name for vote in votes if vote.group == of_teachers for name in vote.teachers)),
        sampled=step.sampled,
        policy=trace.policy,
    )
    usable = sorted(ballot.actions.values(), key=lambda candidate: candidate.action)
    candidates = tuple(candidate.action for candidate in usable)
    messages = tuple(candidate.message for candidate in usable)
    return MinedPair(pair, chosen.action, rejected.action, candidates, messages, earlier)
