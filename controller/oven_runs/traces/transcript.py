"""A trace as text for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from oven_core.terminal_text import clean, wrapped
from oven_runs.traces.comparable_actions import Unusable, action
from oven_runs.traces.records import Message, Reply, Tool, Trace

LINES = 12
"""Lines of a message that are shown by default: a file that the agent read would fill the screen."""


def summary(trace: Trace) -> str:
    """Return the trace in one line."""
    reward = "no reward" if trace.reward is None else f"reward {trace.reward:g}"
    solved = {True: "solved", False: "not solved", None: "unknown whether solved"}[trace.solved]
    steps = f"{len(trace.steps)} step{'s' * (len(trace.steps) != 1)}"
    return clean(f"{trace.id}  {steps}  {reward}  {solved}  {trace.ended}  {trace.task.id}")


def transcript(
    trace: Trace, replies: Mapping[int, Sequence[Reply]] = MappingProxyType({}), *, whole: bool = False
) -> Iterator[str]:
    """Yield the prompt, then each step's action, result and reward, with the teachers' replies by step. `whole` shows
    every line of each message."""
    yield summary(trace)
    policy = trace.policy
    if policy.model:
        yield clean(f"policy {policy.model}" + (f" at step {policy.step}" if policy.step is not None else ""))
    if trace.tools:
        yield from wrapped("tools " + ", ".join(tool.name for tool in trace.tools))
    yield from _messages(trace.prompt, whole)
    for number, step in enumerate(trace.steps):
        yield ""
        if step.state is not None:
            yield f"  (before step {number} the context was rewritten to {len(step.state)} messages)"
        reward = "" if step.reward is None else f"  reward {step.reward:+g}"
        yield f"step {number}{reward}"
        if step.action.calls and step.action.content.strip():
            yield from _text("says", step.action.content, whole)
        yield from _text("does" if step.action.calls else "says", _action_text(step.action, trace.tools), whole)
        for reply in sorted(replies.get(number, ()), key=lambda reply: (reply.teacher, reply.sample)):
            if reply.action is None:
                yield clean(f"  {reply.teacher} failed: {reply.failure}")
            else:
                yield clean(f"  {reply.teacher} would: {_action_text(reply.action, trace.tools)}")
        if step.result is None:
            yield "  (its result was not recorded)"
        yield from _messages(step.result or (), whole)


def _action_text(message: Message, tools: Sequence[Tool]) -> str:
    comparable = action(message, tools)
    if isinstance(comparable, Unusable):
        return f"unusable, {comparable.kind}: {comparable.detail}"
    return str(comparable)


def _messages(messages: tuple[Message, ...], whole: bool) -> Iterator[str]:
    for message in messages:
        yield from _text(f"{message.role} {message.name}".strip(), message.content, whole)


def _text(speaker: str, text: str, whole: bool) -> Iterator[str]:
    lines = text.splitlines() or [""]
    shown = lines if whole else lines[:LINES]
    yield f"  {clean(speaker)}: {clean(shown[0])}"
    yield from (f"    {clean(line)}" for line in shown[1:])
    if len(lines) > len(shown):
        yield f"    ({len(lines) - len(shown):,} more lines; --whole shows them)"
