"""The result of a replay: dollars per trace, seconds per step, failures by kind, agreement with the student. Pure.

The report compares it with the targets of the system that trace replay comes from: under $5 per trace, and under 30 s
per step with three teachers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oven_runs.traces.comparable_actions import Action, Unusable, action, equivalent
from oven_runs.traces.records import Reply, Trace

TARGET_USD_PER_TRACE: Final = 5.0
TARGET_SECONDS_PER_STEP: Final = 30.0
"""For the slowest teacher of a step."""


@dataclass
class TeacherReport:
    """One teacher's replies. A state with several samples counts once."""

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
    """Replies that used tokens of unknown price, which `usd` does not include."""
    seconds: list[float] = field(default_factory=list)
    """For each answered state."""
    agreeing: float = 0.0
    """States at which its most frequent action is the student's. If several actions are equally frequent, the state
    counts by their share that is."""
    compared: int = 0


@dataclass
class ReplayReport:
    """The result of a whole file of replies."""

    traces: int
    steps: int
    teachers: dict[str, TeacherReport]
    usd_per_trace: float | None
    """Mean over traces that all teachers were asked about. None if there is no such trace, no teacher answered, or a
    price is unknown."""
    step_seconds: list[float]
    """For each step that all teachers answered: the slowest teacher's time, because they are asked in parallel."""
    whole_traces: int
    """Traces at whose every step each teacher was asked."""
    replies_elsewhere: int
    """Replies to traces that were not given, or that have changed since."""


def report(traces: Iterable[Trace], replies: Iterable[Reply]) -> ReplayReport:
    """Return the report of all replies. A state that failed and was asked again counts once, with the cost of each
    time."""
    by_trace = {trace.id: trace for trace in traces}
    digests = {name: trace.digests() for name, trace in by_trace.items()}
    states: dict[tuple[str, str, int], list[Reply]] = defaultdict(list)
    teachers: dict[str, TeacherReport] = {}
    elsewhere = 0
    for reply in replies:
        trace_digests = digests.get(reply.trace, ())
        if reply.step >= len(trace_digests) or trace_digests[reply.step] != reply.state:
            elsewhere += 1
            continue
        teacher = teachers.setdefault(reply.teacher, TeacherReport(reply.family))
        _add_reply(teacher, reply, by_trace[reply.trace])
        states[(reply.teacher, reply.trace, reply.step)].append(reply)
    for (name, trace_id, step), state_replies in states.items():
        _add_state(teachers[name], by_trace[trace_id], step, state_replies)
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
    """Return the percentile by nearest rank, None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else None


def as_json(result: ReplayReport) -> dict[str, Any]:
    """Return the output of `--json`. Unknown dollars are null."""
    return {
        "traces": result.traces,
        "steps": result.steps,
        "whole_traces": result.whole_traces,
        "usd_per_trace": result.usd_per_trace,
        "seconds_per_step_p50": percentile(result.step_seconds, 0.5),
        "seconds_per_step_p95": percentile(result.step_seconds, 0.95),
        "replies_elsewhere": result.replies_elsewhere,
        "teachers": {name: _teacher_json(teacher) for name, teacher in result.teachers.items()},
    }


def lines(result: ReplayReport) -> list[str]:
    """Return the output for people."""
    text = [
        f"{result.traces} traces, {result.steps} steps; every teacher was asked at each step of "
        f"{result.whole_traces} traces"
    ]
    for name, teacher in result.teachers.items():
        cached = teacher.tokens_cached / teacher.tokens_in if teacher.tokens_in else 0.0
        parts = [
            f"{teacher.answered} of {teacher.states} states answered",
            f"{teacher.tokens_in:,} tokens in ({100 * cached:.0f} % cached), {teacher.tokens_out:,} out",
            f"price unknown of {teacher.unpriced} replies" if teacher.unpriced else f"${teacher.usd:.4f}",
            f"{_seconds(teacher.seconds)} per state",
        ]
        if teacher.compared:
            parts.append(f"agrees with the student at {100 * teacher.agreeing / teacher.compared:.0f} % of states")
        text.append(f"{name} ({teacher.family}): " + "; ".join(parts))
        text += [f"  {count} replies failed: {kind}" for kind, count in teacher.failures.most_common()]
        text += [f"  {count} actions cannot be compared: {kind}" for kind, count in teacher.unusable.most_common()]
    per_trace = "unknown (no whole trace, no answer, or an unknown price)"
    if result.usd_per_trace is not None:
        per_trace = f"${result.usd_per_trace:.4f}"
    text.append(f"per trace: {per_trace} (target: below ${TARGET_USD_PER_TRACE:g})")
    text.append(
        f"per step: {_seconds(result.step_seconds)}, the slowest teacher (target: below {TARGET_SECONDS_PER_STEP:g} s)"
    )
    if result.replies_elsewhere:
        text.append(f"{result.replies_elsewhere} replies are to traces that were not given, or have changed since")
    return text


def _add_reply(teacher: TeacherReport, reply: Reply, trace: Trace) -> None:
    teacher.replies += 1
    teacher.tokens_in += reply.tokens_in
    teacher.tokens_cached += reply.tokens_cached
    teacher.tokens_out += reply.tokens_out
    teacher.usd += reply.usd or 0.0
    teacher.unpriced += reply.usd is None and reply.tokens_in + reply.tokens_out > 0
    if reply.action is None:
        teacher.failures[reply.failure] += 1
    elif isinstance(comparable := action(reply.action, trace.tools), Unusable):
        teacher.unusable[comparable.kind] += 1


def _add_state(teacher: TeacherReport, trace: Trace, step: int, replies: Sequence[Reply]) -> None:
    teacher.states += 1
    answered = [reply for reply in replies if reply.action is not None]
    if not answered:
        return
    teacher.answered += 1
    teacher.seconds.append(max(reply.seconds or 0.0 for reply in answered))
    student = action(trace.steps[step].action, trace.tools)
    votes: Counter[Action] = Counter()
    outcomes: dict[Action, str] = {}
    for reply in answered:
        comparable = action(reply.action, trace.tools) if reply.action is not None else None
        if isinstance(comparable, Action):
            votes[comparable] += 1
            outcomes[comparable] = outcomes.get(comparable) or reply.outcome
    if not votes or isinstance(student, Unusable):
        return
    largest = max(votes.values())
    modes = [comparable for comparable, count in votes.items() if count == largest]
    student_outcome = trace.steps[step].outcome
    teacher.compared += 1
    teacher.agreeing += sum(equivalent(mode, student, (outcomes[mode], student_outcome)) for mode in modes) / len(modes)


def _usd_per_trace(
    traces: Mapping[str, Trace],
    states: Mapping[tuple[str, str, int], Sequence[Reply]],
    teachers: Mapping[str, TeacherReport],
) -> tuple[float | None, int]:
    """Return the mean cost of the whole traces, and their number."""
    sums: dict[str, float] = defaultdict(float)
    questions: Counter[str] = Counter()
    for (_, trace_id, _), replies in states.items():
        questions[trace_id] += 1
        sums[trace_id] += sum(reply.usd or 0.0 for reply in replies)
    whole = [
        name for name, trace in traces.items() if trace.steps and questions[name] == len(trace.steps) * len(teachers)
    ]
    unknown = any(teacher.unpriced for teacher in teachers.values()) or not any(
        teacher.answered for teacher in teachers.values()
    )
    return (sum(sums[name] for name in whole) / len(whole) if whole and not unknown else None), len(whole)


def _step_seconds(
    states: Mapping[tuple[str, str, int], Sequence[Reply]], teachers: Mapping[str, TeacherReport]
) -> list[float]:
    by_step: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (_, trace_id, step), replies in states.items():
        if any(reply.action is not None for reply in replies):
            by_step[(trace_id, step)].append(max(reply.seconds or 0.0 for reply in replies))
    return [max(seconds) for seconds in by_step.values() if len(seconds) == len(teachers)]


def _teacher_json(teacher: TeacherReport) -> dict[str, Any]:
    return {
        "family": teacher.family,
        "states": teacher.states,
        "answered": teacher.answered,
        "replies": teacher.replies,
        "failures": dict(teacher.failures),
        "unusable": dict(teacher.unusable),
        "tokens_in": teacher.tokens_in,
        "tokens_cached": teacher.tokens_cached,
        "tokens_out": teacher.tokens_out,
        "usd": None if teacher.unpriced else teacher.usd,
        "unpriced_replies": teacher.unpriced,
        "seconds_p50": percentile(teacher.seconds, 0.5),
        "seconds_p95": percentile(teacher.seconds, 0.95),
        "agrees_with_student": teacher.agreeing / teacher.compared if teacher.compared else None,
    }


def _seconds(values: Sequence[float]) -> str:
    middle, late = percentile(values, 0.5), percentile(values, 0.95)
    return "no figure" if middle is None or late is None else f"p50 {middle:.2f} s, p95 {late:.2f} s"
