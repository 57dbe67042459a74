"""Chat messages, as trainers for chat take them: rows with `messages` (or `prompt` and `completion`) and `tools`.

An export: no place for rewards, tokens or how a trace ended. A trace whose context was rewritten is a row for each
stretch of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from oven_runs.traces.formats.chat_messages import (
    from_chat,
    from_list,
    from_tool,
    split,
    to_chat,
    to_tool,
)
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.records import Message, Task, Trace

NO_PLACE: Final = "no place in a chat row"
LOSES: Final = {
    "task (but its id)": NO_PLACE,
    "steps.state": "each stretch is a row, and a trace, of its own",
    "steps.reward, .sampled, .own, .outcome": NO_PLACE,
    "steps.result": "whether a call's missing answer was recorded as empty",
    "reward, solved, ended, policy, meta": NO_PLACE,
    "prompt": "an assistant's message given as an example becomes a step",
}


def _known_by(row: Row) -> bool:
    if "episode_id" in row or "trajectory_format" in row:
        return False  # these have messages, too
    return isinstance(row.get("messages"), list) or (
        isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list)
    )


def _traces(row: Row, name: str) -> Iterator[Trace]:
    lost: Counter[str] = Counter()
    if "messages" in row:
        said = from_list(row["messages"], "messages")
    else:
        said = [*from_list(row.get("prompt"), "prompt"), *from_list(row.get("completion"), "completion")]
    prompt, steps = split(from_chat(one, lost) for one in said)
    task, own = row.get("task_id"), row.get("id")
    given = own if isinstance(own, str) and own else name
    yield Trace(
        id=given,
        task=Task(id=task if isinstance(task, str) else given),
        tools=tuple(from_tool(one) for one in from_list(row.get("tools") or [], "tools")),
        prompt=prompt,
        steps=steps,
        meta={"chat": {"lost": dict(lost)}} if lost else {},
    )


def _rows(trace: Trace) -> Iterable[Row]:
    starts = [at for at, step in enumerate(trace.steps) if at and step.state is not None]
    bounds = [0, *starts, len(trace.steps)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        messages: list[Message] = list(trace.state(start)) if trace.steps else list(trace.prompt)
        for step in trace.steps[start:end]:
            messages += (step.action, *(step.result or ()))
        row: Row = {
            "id": trace.id if number == 0 else f"{trace.id}-{number + 1}",
            "task_id": trace.task.id,
            "messages": [to_chat(one) for one in messages],
        }
        if trace.tools:
            row["tools"] = [to_tool(one) for one in trace.tools]
        yield row


FORMAT = LineFormat(
    about="chat messages and tools, a conversation a line (for trainers; loses most)",
    known_by=_known_by,
    traces=_traces,
    rows=_rows,
    loses=LOSES,
)
