"""Which states to ask teachers about, and whom first: judged on recorded replays that asked all about all. Pure.

A gate orders states, and the first are asked. It is worth something if the states that it asks first make more than
their share of the pairs. A tier asks a cheap teacher everywhere, and the others where that one disagrees with the
student: it loses the pairs of states where the cheap one wrongly agrees.
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
"""(a trace, a step) → how early to ask; None: it cannot tell, and such states come last."""
Unit: TypeAlias = Literal["usd", "tokens"]
DRAWS: Final = 400
"""Of traces with replacement, for the intervals: their ends move by a tenth of a standard error from run to run."""


def entropy(trace: Trace, at: int) -> float | None:
    """Mean nats a token of the policy where it acted; from log-probabilities where entropies were not kept: their
    negative has the entropy as its mean."""
    sampled = trace.steps[at].sampled
    if sampled is None:
        return None
    values = sampled.entropies or tuple(-one for one in sampled.logprobs or ())
    return sum(values) / len(values) if values else None


def disagreement(trace: Trace, at: int) -> float | None:
    """The share of the policy's own further samples at the state that differ from what it did; one that cannot be
    compared differs."""
    step = trace.steps[at]
    if not step.own:
        return None
    own = action(step.action, trace.tools)
    if isinstance(own, Unusable):
        return 1.0
    return sum(action(one, trace.tools) != own for one in step.own) / len(step.own)


def failed(trace: Trace, _: int) -> float | None:
    """1 on a trace that did not solve its task, 0 on one that did."""
    return None if trace.solved is None else float(not trace.solved)


def at_random(trace: Trace, at: int) -> float | None:
    """A number that has to do with nothing: the control."""
    return int.from_bytes(hashlib.sha256(f"{trace.id}\0{at}".encode(errors="replace")).digest()[:6]) / 2**48


NEEDS: Final[Mapping[str, str]] = {
    "entropy": "no step has sampled tokens with their entropies or log-probabilities (TraceStep.sampled)",
    "disagreement": "no step has further samples of the policy's own (TraceStep.own)",
    "failed": "no trace says whether it is solved (Trace.solved)",
}
"""Why a gate cannot tell about any state."""
GATES: Final[Mapping[str, Gate]] = {
    "entropy": entropy,
    "disagreement": disagreement,
    "failed": failed,
    "random": at_random,
}


@dataclass(frozen=True)
class ReplayedState:
    """A state that each teacher was asked about."""

    trace: str
    rule: Rule | None
    """Of the pair that it makes; None: it makes none."""
    costs: Mapping[str, float]
    """By teacher, in the unit of the replay."""
    scores: Mapping[str, float | None]
    """By gate."""
    tie: float
    """Orders states of one score."""
    step: TraceStep
    tools: tuple[Tool, ...]
    digest: str
    replies: tuple[Reply, ...]

    @functools.cached_property
    def cost(self) -> float:
        """All teachers'."""
        return sum(self.costs.values())

    def asks_on(self, first: Collection[str]) -> bool:
        """Whether these teachers, asked first, leave a reason to ask the others: one's family differs from the student,
        or none could say. A student's action that cannot be compared makes no pair, whatever others say."""
        asked = [one for one in self.replies if one.teacher in first]
        made = ballot(self.step, self.tools, self.digest, asked)
        if isinstance(made.student, Unusable):
            return False
        student = made.student.of
        return not made.votes or any(vote.of != student for vote in made.votes.values())


@dataclass
class Replay:
    """A recorded replay, as far as it is full."""

    states: list[ReplayedState] = field(default_factory=list)
    teachers: tuple[str, ...] = ()
    unit: Unit = "usd"
    """Tokens where the price of any reply with an action is not known, which is not 0, or where all were free."""
    partial: int = 0
    """States that some teacher was not asked about; they are not judged on."""
    unpriced_failures: int = 0
    """Failures of unknown cost, which are in no sum."""


def replayed(traces: Iterable[Trace], replies: Mapping[Key, Sequence[Reply]]) -> Replay:
    """The states of a replay with their pairs and costs."""
    everything = [one for given in replies.values() for one in given]
    teachers = tuple(sorted({one.teacher for one in everything}))
    priced = all(one.usd is not None for one in everything if one.action is not None)
    priced = priced and any(one.usd for one in everything)
    found = Replay(teachers=teachers, unit="usd" if priced else "tokens")
    for trace in traces:
        for at, (step, digest) in enumerate(zip(trace.steps, trace.digests(), strict=True)):
            given = [one for one in replies.get((trace.id, at), ()) if one.state == digest]
            if {one.teacher for one in given} != set(teachers):
                found.partial += 1
                continue
            costs: defaultdict[str, float] = defaultdict(float)
            for one in given:
                if found.unit == "tokens":
                    costs[one.teacher] += one.tokens_in + one.tokens_out
                elif one.usd is None:
                    found.unpriced_failures += 1
                else:
                    costs[one.teacher] += one.usd
            decided = decide(ballot(step, trace.tools, digest, given))
            found.states.append(
                ReplayedState(
                    trace=trace.id,
                    rule=None if isinstance(decided, str) else decided.rule,
                    costs=dict(costs),
                    scores={name: gate(trace, at) for name, gate in GATES.items()},
                    tie=at_random(trace, at) or 0.0,
                    step=step,
                    tools=trace.tools,
                    digest=digest,
                    replies=tuple(given),
                )
            )
    return found


@dataclass(frozen=True)
class Point:
    """Shares of all, when so many states are asked."""

    states: float
    cost: float
    pairs: float


NOTHING: Final = "no pair was made, or nothing was paid: there is nothing to save"
"""Why nothing about asking less can be judged."""


@dataclass(frozen=True)
class Curve:
    """What a gate gets for what it costs."""

    gate: str
    points: tuple[Point, ...]
    """At 0, 10, …, 100 % of the cost."""
    gain: float
    """The mean share of pairs over all shares of cost, minus ½, which asking at random has: from −½ to ½."""
    low: float | None
    high: float | None
    """95 % of draws of traces; None: of one trace, all draws are the same."""
    unscored: int
    """States that the gate could not tell about."""


def curve(replay: Replay, gate: str, *, seed: int = 0, draws: int = DRAWS) -> Curve | str:
    """A gate's curve, or why it cannot be judged."""
    ordered = _asked_in_order(replay.states, gate)
    scores = {one.scores[gate] for one in ordered}
    if scores <= {None}:
        return NEEDS.get(gate, "there is no state")
    if len(scores) == 1:
        return f"it tells no state from another: all have the score {next(iter(scores)):g}"
    traces = sorted({one.trace for one in ordered})
    points = _points(ordered, dict.fromkeys(traces, 1))
    if points is None:
        return NOTHING
    chance = random.Random(seed)
    drawn = (_points(ordered, Counter(chance.choices(traces, k=len(traces)))) for _ in range(draws))
    gains = sorted(_area(found) - 0.5 for found in drawn if found is not None)
    low = high = None
    if gains and len(traces) > 1:
        low, high = (gains[int(share * (len(gains) - 1))] for share in (0.025, 0.975))
    tenths = tuple(_at_cost(points, share / 10) for share in range(11))
    return Curve(gate, tenths, _area(points) - 0.5, low, high, sum(one.scores[gate] is None for one in ordered))


@dataclass(frozen=True)
class Tiers:
    """What asking some teachers first saves and loses."""

    first: tuple[str, ...]
    asked: float
    """The share of states at which the others are asked, too."""
    cost: float
    pairs: float
    """Shares of the full replay's."""
    by_rule: Mapping[Rule, float]
    """Of each rule: where the first agree with the student, the others are not asked, and no minority is found."""


def tiers(replay: Replay, first: Collection[str]) -> Tiers | None:
    """`first` is asked about each state, and the others where it disagrees. None where the replay has no pair or no
    cost."""
    pairs = Counter(one.rule for one in replay.states if one.rule is not None)
    cost = sum(one.cost for one in replay.states)
    if not pairs or not cost:
        return None
    asked = [one for one in replay.states if one.asks_on(first)]
    spent = sum(one.costs.get(name, 0.0) for one in replay.states for name in first)
    spent += sum(value for one in asked for name, value in one.costs.items() if name not in first)
    kept = Counter(one.rule for one in asked if one.rule is not None)
    by_rule = {rule: kept[rule] / count for rule, count in sorted(pairs.items())}
    share = len(asked) / len(replay.states)
    return Tiers(tuple(sorted(first)), share, spent / cost, kept.total() / pairs.total(), by_rule)


def cheapest(replay: Replay) -> str | None:
    """The teacher that cost least, of those that gave an action; None: none did."""
    heard = {one.teacher for state in replay.states for one in state.replies if one.action is not None}
    costs = {name: math.fsum(state.costs.get(name, 0.0) for state in replay.states) for name in heard}
    return min(heard, key=lambda name: (costs[name], name), default=None)


def _asked_in_order(states: Sequence[ReplayedState], gate: str) -> list[ReplayedState]:
    def place(one: ReplayedState) -> tuple[bool, float, float]:
        score = one.scores[gate]
        return score is None, -(score or 0.0), one.tie

    return sorted(states, key=place)


def _points(ordered: Sequence[ReplayedState], times: Mapping[str, int]) -> list[Point] | None:
    """After each state; `times`: how often each trace was drawn. None where there is no pair or no cost."""
    points, states, pairs, cost = [(0, 0, 0.0)], 0, 0, 0.0
    for one in ordered:
        if weight := times.get(one.trace, 0):
            states, pairs = states + weight, pairs + weight * (one.rule is not None)
            cost += weight * one.cost
            points.append((states, pairs, cost))
    if not pairs or cost <= 0:
        return None
    return [Point(asked / states, spent / cost, had / pairs) for asked, had, spent in points]


def _at_cost(points: Sequence[Point], share: float) -> Point:
    """Where so much is spent, between two states in proportion."""
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
    """Under pairs over cost, by trapezoids."""
    return sum((after.cost - before.cost) * (after.pairs + before.pairs) / 2 for before, after in pairwise(points))
