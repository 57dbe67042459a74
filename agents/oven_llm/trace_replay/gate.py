"""Which states to ask teachers about, and which teachers first, judged on recorded replays with all replies. Pure.

A gate orders the states by how useful a question there is expected to be. It is worth something if the states that it
ranks first make more than their share of the pairs. A tier asks a cheap teacher everywhere, and the other teachers only
where it disagrees with the student. It loses the pairs of states where the cheap teacher wrongly agrees.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from oven_llm.trace_replay.pairs import Key, ballot, decide
from oven_runs.traces.comparable_actions import Unusable, action
from oven_runs.traces.records import Reply, Rule, Tool, Trace, TraceStep

Gate: TypeAlias = Callable[[Trace, int], float | None]
"""(trace, step) → a score: higher is asked earlier, None is unknown and asked last."""
Unit: TypeAlias = Literal["usd", "tokens"]
DRAWS: Final = 400
"""Bootstrap draws of traces for the intervals. Their ends vary by a tenth of a standard error between seeds."""


def entropy(trace: Trace, step: int) -> float | None:
    """Return the policy's mean entropy at its action, in nats per token. Without recorded entropies it is estimated
    from log-probabilities, whose negative has the entropy as its mean."""
    sampled = trace.steps[step].sampled
    if sampled is None:
        return None
    values = sampled.entropies or tuple(-logprob for logprob in sampled.logprobs or ())
    return sum(values) / len(values) if values else None


def disagreement(trace: Trace, step: int) -> float | None:
    """Return the share of the policy's other samples at the state that differ from its action. A sample that cannot be
    compared differs."""
    samples = trace.steps[step].own
    if not samples:
        return None
    student = action(trace.steps[step].action, trace.tools)
    if isinstance(student, Unusable):
        return 1.0
    return sum(action(sample, trace.tools) != student for sample in samples) / len(samples)


def failed(trace: Trace, _: int) -> float | None:
    """Return 1 for a trace that did not solve its task, 0 for one that did."""
    return None if trace.solved is None else float(not trace.solved)


def at_random(trace: Trace, step: int) -> float | None:
    """Return a pseudo-random number: the control."""
    digest = hashlib.sha256(f"{trace.id}\0{step}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:6]) / 2**48


NEEDS: Final[Mapping[str, str]] = {
    "entropy": "no step has sampled tokens with their entropies or log-probabilities (TraceStep.sampled)",
    "disagreement": "no step has further samples of the policy's own (TraceStep.own)",
    "failed": "no trace says whether it is solved (Trace.solved)",
}
"""Reason why a gate has no score for any state."""
GATES: Final[Mapping[str, Gate]] = {
    "entropy": entropy,
    "disagreement": disagreement,
    "failed": failed,
    "random": at_random,
}


@dataclass(frozen=True)
class ReplayedState:
    """A state that every teacher was asked about."""

    trace: str
    rule: Rule | None
    """The rule of the state's pair; None if it has no pair."""
    costs: Mapping[str, float]
    """By teacher, in the unit of the replay."""
    scores: Mapping[str, float | None]
    """By gate."""
    tie: float
    """Orders states with the same score."""
    step: TraceStep
    tools: tuple[Tool, ...]
    digest: str
    replies: tuple[Reply, ...]

    @functools.cached_property
    def cost(self) -> float:
        """The cost of all teachers."""
        return sum(self.costs.values())

    def needs_others(self, first: Collection[str]) -> bool:
        """Return whether the replies of the teachers `first` leave a reason to ask the others: a family differs from
        the student, or none has a vote. A student's action that cannot be compared makes no pair in any case."""
        votes = ballot(self.step, self.tools, self.digest, [reply for reply in self.replies if reply.teacher in first])
        if isinstance(votes.student, Unusable):
            return False
        student = votes.student.group
        return not votes.votes or any(vote.group != student for vote in votes.votes.values())


@dataclass
class RecordedReplay:
    """The states of a recorded replay at which every teacher was asked."""

    states: list[ReplayedState] = field(default_factory=list)
    teachers: tuple[str, ...] = ()
    unit: Unit = "usd"
    """Tokens if the price of any reply with an action is unknown, or if all replies were free."""
    partial: int = 0
    """States that some teacher was not asked about. They are not used."""
    unpriced_failures: int = 0
    """Failures of unknown cost, which are in no sum."""


def replayed(traces: Iterable[Trace], replies: Mapping[Key, Sequence[Reply]]) -> RecordedReplay:
    """Return the states of a replay with their pairs and costs."""
    all_replies = [reply for state_replies in replies.values() for reply in state_replies]
    teachers = tuple(sorted({reply.teacher for reply in all_replies}))
    priced = all(reply.usd is not None for reply in all_replies if reply.action is not None)
    priced = priced and any(reply.usd for reply in all_replies)
    replay = RecordedReplay(teachers=teachers, unit="usd" if priced else "tokens")
    for trace in traces:
        for number, (step, digest) in enumerate(zip(trace.steps, trace.digests(), strict=True)):
            state_replies = [reply for reply in replies.get((trace.id, number), ()) if reply.state == digest]
            if {reply.teacher for reply in state_replies} != set(teachers):
                replay.partial += 1
                continue
            costs: defaultdict[str, float] = defaultdict(float)
            for reply in state_replies:
                if replay.unit == "tokens":
                    costs[reply.teacher] += reply.tokens_in + reply.tokens_out
                elif reply.usd is None:
                    replay.unpriced_failures += 1
                else:
                    costs[reply.teacher] += reply.usd
            decision = decide(ballot(step, trace.tools, digest, state_replies))
            replay.states.append(
                ReplayedState(
                    trace=trace.id,
                    rule=None if isinstance(decision, str) else decision.rule,
                    costs=dict(costs),
                    scores={name: gate(trace, number) for name, gate in GATES.items()},
                    tie=at_random(trace, number) or 0.0,
                    step=step,
                    tools=trace.tools,
                    digest=digest,
                    replies=tuple(state_replies),
                )
            )
    return replay


@dataclass(frozen=True)
class Point:
    """Shares of all states, of the cost and of the pairs, when so many states are asked."""

    states: float
    cost: float
    pairs: float


NOTHING: Final = "no pair was made, or nothing was paid: there is nothing to save"
"""Reason why no gate can be judged."""


@dataclass(frozen=True)
class Curve:
    """Pairs over cost for one gate."""

    gate: str
    points: tuple[Point, ...]
    """At 0, 10, …, 100 % of the cost."""
    gain: float
    """Mean share of pairs over all shares of cost, minus ½, the value for asking at random. From −½ to ½."""
    low: float | None
    high: float | None
    """95 % interval over draws of traces; None for a single trace, whose draws are all the same."""
    unscored: int
    """States without a score."""


def curve(replay: RecordedReplay, gate: str, *, seed: int = 0, draws: int = DRAWS) -> Curve | str:
    """Return a gate's curve, or the reason why it cannot be judged."""
    ordered = _in_order(replay.states, gate)
    scores = {state.scores[gate] for state in ordered}
    if scores <= {None}:
        return NEEDS.get(gate, "there is no state")
    if len(scores) == 1:
        return f"all states have the same score {next(iter(scores)):g}"
    traces = sorted({state.trace for state in ordered})
    points = _points(ordered, dict.fromkeys(traces, 1))
    if points is None:
        return NOTHING
    rng = random.Random(seed)
    drawn = (_points(ordered, Counter(rng.choices(traces, k=len(traces)))) for _ in range(draws))
    gains = sorted(_area(draw) - 0.5 for draw in drawn if draw is not None)
    low = high = None
    if gains and len(traces) > 1:
        low, high = (gains[int(share * (len(gains) - 1))] for share in (0.025, 0.975))
    tenths = tuple(_at_cost(points, share / 10) for share in range(11))
    return Curve(gate, tenths, _area(points) - 0.5, low, high, sum(state.scores[gate] is None for state in ordered))


@dataclass(frozen=True)
class Tiers:
    """Savings and losses of asking some teachers first."""

    first: tuple[str, ...]
    others_asked: float
    """Share of states at which the other teachers are asked too."""
    cost: float
    pairs: float
    """`cost` and `pairs` are shares of the full replay's."""
    by_rule: Mapping[Rule, float]
    """Share of the pairs by rule. Where the first teachers agree with the student, the others are not asked, so no
    minority is found."""


def tiers(replay: RecordedReplay, first: Collection[str]) -> Tiers | None:
    """Return the result of asking `first` at each state, and the others where they disagree with the student. None if
    the replay has no pair or no cost."""
    pairs = Counter(state.rule for state in replay.states if state.rule is not None)
    cost = sum(state.cost for state in replay.states)
    if not pairs or not cost:
        return None
    asking_others = [state for state in replay.states if state.needs_others(first)]
    spent = sum(state.costs.get(name, 0.0) for state in replay.states for name in first)
    spent += sum(value for state in asking_others for name, value in state.costs.items() if name not in first)
    remaining = Counter(state.rule for state in asking_others if state.rule is not None)
    by_rule = {rule: remaining[rule] / count for rule, count in sorted(pairs.items())}
    share = len(asking_others) / len(replay.states)
    return Tiers(tuple(sorted(first)), share, spent / cost, remaining.total() / pairs.total(), by_rule)


def cheapest(replay: RecordedReplay) -> str | None:
    """Return the cheapest teacher that gave an action; None if no teacher did."""
    answering = {reply.teacher for state in replay.states for reply in state.replies if reply.action is not None}
    costs = {name: math.fsum(state.costs.get(name, 0.0) for state in replay.states) for name in answering}
    return min(answering, key=lambda name: (costs[name], name), default=None)


def _in_order(states: Sequence[ReplayedState], gate: str) -> list[ReplayedState]:
    def rank(state: ReplayedState) -> tuple[bool, float, float]:
        score = state.scores[gate]
        return score is None, -(score or 0.0), state.tie

    return sorted(states, key=rank)


def _points(ordered: Sequence[ReplayedState], times: Mapping[str, int]) -> list[Point] | None:
    """Return the point after each state. `times`: how often each trace was drawn. None if there is no pair or cost."""
    points, states, pairs, cost = [(0, 0, 0.0)], 0, 0, 0.0
    for state in ordered:
        if weight := times.get(state.trace, 0):
            states, pairs = states + weight, pairs + weight * (state.rule is not None)
            cost += weight * state.cost
            points.append((states, pairs, cost))
    if not pairs or cost <= 0:
        return None
    return [Point(number / states, spent / cost, count / pairs) for number, count, spent in points]


def _at_cost(points: Sequence[Point], share: float) -> Point:
    """Return the point at a share of the cost, interpolated between two states."""
    for before, after in pairwise(points):
        if after.cost >= share and after.cost > before.cost:
            part = (share - before.cost) / (after.cost - before.cost)
            return Point(
                before.states + part * (after.states - before.states),
                share,
                before.pairs + part * (after.pairs - before.pairs),
            )
    return points[-1]


def _area(points: Sequence[Point]) -> float:
    """Return the area under pairs over cost, by trapezoids."""
    return sum((after.cost - before.cost) * (after.pairs + before.pairs) / 2 for before, after in pairwise(points))
