"""A trace as text for a person."""

from __future__ import annotations

from collections.abc import Iterator

from oven_core.terminal_text import clean, wrapped
from oven_runs.traces.records import Message, Trace

LINES = 12
"""Lines of a message that are shown by default: a file that the agent read would fill the screen."""


def summary(trace: Trace) -> str:
    """Return the trace in one line."""
    reward = "no reward" if trace.reward is None else f"reward {trace.reward:g}"
    solved = {True: "solved", False: "not solved", None: "unknown whether solved"}[trace.solved]
    steps = f"{len(trace.steps)} step{'s' * (len(trace.steps) != 1)}"
    return clean(f"{trace.id}  {steps}  {reward}  {solved}  {trace.ended}  {trace.task.id}")


def transcript(trace: Trace, *, whole: bool = False) -> Iterator[str]:
    """Yield the prompt, then each step's action, result and reward. `whole` shows every line of each message."""
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
        if step.action.content.strip() or not step.action.calls:
            yield from _text("says", step.action.content, whole)
        for call in step.action.calls:
            yield from _text("does", f"{call.name}({call.arguments})", whole)
        if step.result is None:
            yield "  (its result was not recorded)"
        yield from _messages(step.result or (), whole)


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
