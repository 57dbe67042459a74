"""A trace as text for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from oven_core.terminal_text import clean, wrapped
from oven_runs.traces.comparable_actions import Unusable, action
from oven_runs.traces.records import Message, Reply, Trace

LINES = 12
"""Of a message, unless all are asked for: a file that was read fills the screen."""


def listed(trace: Trace) -> str:
    """A trace in a line."""
    reward = "no reward" if trace.reward is None else f"reward {trace.reward:g}"
    solved = {True: "solved", False: "not solved", None: "not said whether solved"}[trace.solved]
    steps = f"{len(trace.steps)} step{'s' * (len(trace.steps) != 1)}"
    return clean(f"{trace.id}  {steps}  {reward}  {solved}  {trace.ended}  {trace.task.id}")


def transcript(
    trace: Trace, replies: Mapping[int, Sequence[Reply]] = MappingProxyType({}), *, whole: bool = False
) -> Iterator[str]:
    """Its prompt, then each step's action, result and reward, with the replies of teachers by step. `whole`: all lines
    of each message."""
    yield listed(trace)
    policy = trace.policy
    if policy.model:
        yield clean(f"policy {policy.model}" + (f" at step {policy.step}" if policy.step is not None else ""))
    if trace.tools:
        yield from wrapped("tools " + ", ".join(tool.name for tool in trace.tools))
    yield from _messages(trace.prompt, whole)
    for at, step in enumerate(trace.steps):
        yield ""
        if step.state is not None:
            yield f"  (before step {at} the context was rewritten to {len(step.state)} messages)"
        made = action(step.action, trace.tools)
        shown = f"unusable, {made.kind}: {made.detail}" if isinstance(made, Unusable) else str(made)
        reward = "" if step.reward is None else f"  reward {step.reward:+g}"
        yield f"step {at}{reward}"
        if step.action.calls and step.action.content.strip():
            yield from _text("says", step.action.content, whole)
        yield from _text("does" if step.action.calls else "says", shown, whole)
        for reply in sorted(replies.get(at, ()), key=lambda one: (one.teacher, one.sample)):
            yield _would(reply, trace)
        if step.result is None:
            yield "  (its result was not recorded)"
        yield from _messages(step.result or (), whole)


def _would(reply: Reply, trace: Trace) -> str:
    if reply.action is None:
        return clean(f"  {reply.teacher} failed: {reply.failure}")
    made = action(reply.action, trace.tools)
    shown = f"unusable, {made.kind}: {made.detail}" if isinstance(made, Unusable) else str(made)
    return clean(f"  {reply.teacher} would: {shown}")


def _messages(messages: tuple[Message, ...], whole: bool) -> Iterator[str]:
    for message in messages:
        yield from _text(f"{message.role} {message.name}".strip(), message.content, whole)


def _text(who: str, text: str, whole: bool) -> Iterator[str]:
    lines = text.splitlines() or [""]
    shown = lines if whole else lines[:LINES]
    yield f"  {clean(who)}: {clean(shown[0])}"
    yield from (f"    {clean(line)}" for line in shown[1:])
    if len(lines) > len(shown):
        yield f"    ({len(lines) - len(shown):,} more lines; --whole shows them)"
