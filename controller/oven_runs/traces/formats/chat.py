"""Read and write the chat format of trainers: rows with `messages` (or `prompt` and `completion`) and `tools`.

The format has no rewards, no tokens and no reason why a trace ended. After a rewrite of the context, a new row starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from oven_runs.traces.formats.chat_messages import expect_list, from_chat, from_tool, split_into_steps, to_chat, to_tool
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.trace_records import Message, Task, Trace

NO_PLACE: Final = "a chat row cannot store it"
LOSES: Final = {
    "task (except its id)": NO_PLACE,
    "steps.state": "each part of a rewritten trace becomes a separate row and trace",
    "steps.reward, .sampled, .outcome": NO_PLACE,
    "steps.result": "a missing answer and an empty one look the same",
    "reward, solved, ended, policy, meta": NO_PLACE,
    "prompt": "the assistant's messages in few-shot examples become steps",
}


def _recognises(row: Row) -> bool:
    if "episode_id" in row or "trajectory_format" in row:
        return False  # OpenEnv and mini-swe-agent have messages too
    return isinstance(row.get("messages"), list) or (
        isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list)
    )


def _read_traces(row: Row, default_id: str) -> Iterator[Trace]:
    lost: Counter[str] = Counter()
    if "messages" in row:
        chat = expect_list(row["messages"], "messages")
    else:
        chat = [*expect_list(row.get("prompt"), "prompt"), *expect_list(row.get("completion"), "completion")]
    prompt, steps = split_into_steps(from_chat(message, lost) for message in chat)
    task_id, row_id = row.get("task_id"), row.get("id")
    trace_id = row_id if isinstance(row_id, str) and row_id else default_id
    yield Trace(
        id=trace_id,
        task=Task(id=task_id if isinstance(task_id, str) else trace_id),
        tools=tuple(from_tool(tool) for tool in expect_list(row.get("tools") or [], "tools")),
        prompt=prompt,
        steps=steps,
        meta={"chat": {"lost": dict(lost)}} if lost else {},
    )


def _to_rows(trace: Trace) -> Iterable[Row]:
    rewrites = [number for number, step in enumerate(trace.steps) if number > 0 and step.state is not None]
    bounds = [0, *rewrites, len(trace.steps)]
    for part, (start, end) in enumerate(pairwise(bounds)):
        messages: list[Message] = list(trace.state(start)) if trace.steps else list(trace.prompt)
        for step in trace.steps[start:end]:
            messages += (step.action, *(step.result or ()))
        row: Row = {
            "id": trace.id if part == 0 else f"{trace.id}-{part + 1}",
            "task_id": trace.task.id,
            "messages": [to_chat(message) for message in messages],
        }
        if trace.tools:
            row["tools"] = [to_tool(tool) for tool in trace.tools]
        yield row


FORMAT = LineFormat(
    about="chat messages and tools, one conversation per line (for trainers; loses the most)",
    recognises=_recognises,
    traces=_read_traces,
    rows=_to_rows,
    loses=LOSES,
)
