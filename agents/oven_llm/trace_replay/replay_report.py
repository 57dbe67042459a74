"""What a replay came to: dollars per trace, seconds per step, failures by kind, and who agrees with the student. Pure.

The source's own bar stands beside it: under $5 per trace and under 30 s per step with three teachers (its first spike).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oven_runs.traces.comparable_actions import Action, Unusable, action, equivalent
from oven_runs.traces.records import Reply, Trace

SOURCE_USD_PER_TRACE: Final = 5.0
"""Below which the source system takes a replay to be worth its money; reported beside what it came to."""
SOURCE_SECONDS_PER_STEP: Final = 30.0
"""Its limit of a step's time, of the slowest teacher."""


@dataclass
class TeacherReport:
    """One teacher's replies. A state with several samples is one state."""

    family: str
    states: int = 0
    answered: int = 0
    """States with at least one action."""
    replies: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Replies without an action, by kind."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Actions that cannot be compared with others, by kind."""
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unpriced: int = 0
    """Replies that used tokens whose price is not known: `usd` lacks them."""
    seconds: list[float] = field(default_factory=list)
    """Of each state that was answered."""
    agreeing: float = 0.0
    """States at which its most frequent action is the student's; a state counts for a part where only some of several
    equally frequent ones are."""
    compared: int = 0


@dataclass
class ReplayReport:
    """Of a whole file of replies."""

    traces: int
    steps: int
    teachers: dict[str, TeacherReport]
    usd_per_trace: float | None
    """Mean over traces that all teachers were asked about; None: no trace was, no teacher answered, or a price is not
    known."""
    step_seconds: list[float]
    """Of each step that all teachers answered: of the slowest of them, since they are asked side by side."""
    whole_traces: int
    """Traces at whose every step each teacher was asked."""
    replies_elsewhere: int
    """Replies to traces that were not given, or have changed since."""


def report(traces: Iterable[Trace], replies: Iterable[Reply]) -> ReplayReport:
    """Of all replies: a state that failed and was asked again counts once, and what it cost each time."""
    by_trace = {trace.id: trace for trace in traces}
    digests = {name: trace.digests() for name, trace in by_trace.items()}
    states: dict[tuple[str, str, int], list[Reply]] = defaultdict(list)
    teachers: dict[str, TeacherReport] = {}
    elsewhere = 0
    for reply in replies:
        of = digests.get(reply.trace, ())
        if reply.step >= len(of) or of[reply.step] != reply.state:
            elsewhere += 1
            continue
        found = teachers.setdefault(reply.teacher, TeacherReport(reply.family))
        _add(found, reply, by_trace[reply.trace])
        states[(reply.teacher, reply.trace, reply.step)].append(reply)
    for (teacher, trace, step), of_state in states.items():
        _state(teachers[teacher], by_trace[trace], step, of_state)
    per_trace, whole = _usd_per_trace(by_trace, states, teachers)
    return ReplayReport(
        traces=len(by_trace),
        steps=sum(len(trace.steps) for trace in by_trace.values()),
        teachers=dict(sorted(teachers.items())),
        usd_per_trace=per_trace,
        step_seconds=_step_seconds(states, teachers),
        whole_traces=whole,
        replies_elsewhere=elsewhere,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank; None of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else None


def as_json(of: ReplayReport) -> dict[str, Any]:
    """For `--json`. Dollars are null where they are not known."""
    return {
        "traces": of.traces,
        "steps": of.steps,
        "whole_traces": of.whole_traces,
        "usd_per_trace": of.usd_per_trace,
        "seconds_per_step_p50": percentile(of.step_seconds, 0.5),
        "seconds_per_step_p95": percentile(of.step_seconds, 0.95),
        "replies_elsewhere": of.replies_elsewhere,
        "teachers": {name: _teacher_json(teacher) for name, teacher in of.teachers.items()},
    }


def lines(of: ReplayReport) -> list[str]:
    """For people."""
    found = [f"{of.traces} traces, {of.steps} steps; every teacher was asked at each step of {of.whole_traces} traces"]
    for name, teacher in of.teachers.items():
        cached = teacher.tokens_cached / teacher.tokens_in if teacher.tokens_in else 0.0
        said = [
            f"{teacher.answered} of {teacher.states} states answered",
            f"{teacher.tokens_in:,} tokens in ({100 * cached:.0f} % cached), {teacher.tokens_out:,} out",
            _usd(teacher),
            f"{_seconds(teacher.seconds)} per state",
        ]
        if teacher.compared:
            said.append(f"agrees with the student at {100 * teacher.agreeing / teacher.compared:.0f} % of states")
        found.append(f"{name} ({teacher.family}): " + "; ".join(said))
        found += [f"  {count} replies failed: {kind}" for kind, count in teacher.failures.most_common()]
        found += [f"  {count} actions cannot be compared: {kind}" for kind, count in teacher.unusable.most_common()]
    found.append(
        "per trace: "
        + (
            "unknown (no whole trace, no answer, or a price that is not known)"
            if of.usd_per_trace is None
            else f"${of.usd_per_trace:.4f}"
        )
        + f" (the source's bar: below ${SOURCE_USD_PER_TRACE:g})"
    )
    found.append(
        f"per step: {_seconds(of.step_seconds)}, the slowest teacher (the source's bar: below "
        f"{SOURCE_SECONDS_PER_STEP:g} s)"
    )
    if of.replies_elsewhere:
        found.append(f"{of.replies_elsewhere} replies are to traces that were not given, or have changed since")
    return found


def _add(found: TeacherReport, reply: Reply, trace: Trace) -> None:
    found.replies += 1
    found.tokens_in += reply.tokens_in
    found.tokens_cached += reply.tokens_cached
    found.tokens_out += reply.tokens_out
    found.usd += reply.usd or 0.0
    found.unpriced += reply.usd is None and reply.tokens_in + reply.tokens_out > 0
    if reply.action is None:
        found.failures[reply.failure] += 1
    elif isinstance(made := action(reply.action, trace.tools), Unusable):
        found.unusable[made.kind] += 1


def _state(found: TeacherReport, trace: Trace, step: int, replies: Sequence[Reply]) -> None:
    found.states += 1
    answered = [reply for reply in replies if reply.action is not None]
    if not answered:
        return
    found.answered += 1
    found.seconds.append(max(reply.seconds or 0.0 for reply in answered))
    student = action(trace.steps[step].action, trace.tools)
    votes: Counter[Action] = Counter()
    outcomes: dict[Action, str] = {}
    for reply in answered:
        made = action(reply.action, trace.tools) if reply.action is not None else None
        if isinstance(made, Action):
            votes[made] += 1
            outcomes[made] = outcomes.get(made) or reply.outcome
    if not votes or isinstance(student, Unusable):
        return
    most = max(votes.values())
    modes = [made for made, count in votes.items() if count == most]
    own = trace.steps[step].outcome
    found.compared += 1
    found.agreeing += sum(equivalent(made, student, (outcomes[made], own)) for made in modes) / len(modes)


def _usd_per_trace(
    traces: Mapping[str, Trace],
    states: Mapping[tuple[str, str, int], Sequence[Reply]],
    teachers: Mapping[str, TeacherReport],
) -> tuple[float | None, int]:
    sums: dict[str, float] = defaultdict(float)
    asked: Counter[str] = Counter()
    for (_, trace, _), replies in states.items():
        asked[trace] += 1
        sums[trace] += sum(reply.usd or 0.0 for reply in replies)
    whole = [name for name, trace in traces.items() if trace.steps and asked[name] == len(trace.steps) * len(teachers)]
    unknown = any(teacher.unpriced for teacher in teachers.values()) or not any(
        teacher.answered for teacher in teachers.values()
    )
    return (sum(sums[name] for name in whole) / len(whole) if whole and not unknown else None), len(whole)


def _step_seconds(
    states: Mapping[tuple[str, str, int], Sequence[Reply]], teachers: Mapping[str, TeacherReport]
) -> list[float]:
    slowest: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (_, trace, step), replies in states.items():
        if any(reply.action is not None for reply in replies):
            slowest[(trace, step)].append(max(reply.seconds or 0.0 for reply in replies))
    return [max(of) for of in slowest.values() if len(of) == len(teachers)]


def _teacher_json(of: TeacherReport) -> dict[str, Any]:
    return {
        "family": of.family,
        "states": of.states,
        "answered": of.answered,
        "replies": of.replies,
        "failures": dict(of.failures),
        "unusable": dict(of.unusable),
        "tokens_in": of.tokens_in,
        "tokens_cached": of.tokens_cached,
        "tokens_out": of.tokens_out,
        "usd": None if of.unpriced else of.usd,
        "unpriced_replies": of.unpriced,
        "seconds_p50": percentile(of.seconds, 0.5),
        "seconds_p95": percentile(of.seconds, 0.95),
        "agrees_with_student": of.agreeing / of.compared if of.compared else None,
    }


def _usd(of: TeacherReport) -> str:
    return f"price unknown of {of.unpriced} replies" if of.unpriced else f"${of.usd:.4f}"


def _seconds(values: Sequence[float]) -> str:
    middle, late = percentile(values, 0.5), percentile(values, 0.95)
    return "no figure" if middle is None or late is None else f"p50 {middle:.2f} s, p95 {late:.2f} s"
