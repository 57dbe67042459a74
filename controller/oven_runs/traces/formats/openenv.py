"""The `results.jsonl` format of OpenEnv (0.10), with one episode per line and one reward per episode.

`openenv.core.harness.collect` defines the format. It stores each tool result twice: as a message and in `tool_trace`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from oven_runs.traces.formats import extra_data
from oven_runs.traces.formats.chat_messages import expect_list, from_chat, last_conversation, split_into_steps
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.trace_records import Ended, Task, Trace, TraceStep

META = "openenv"  # key in Trace.meta
META_FIELDS = ("metrics", "verify_metrics", "artifacts", "extra")  # fields of an episode that records do not have


def _read_traces(row: Row, default_id: str) -> Iterator[Trace]:
    extra = row.get("extra") or {}
    stored_data = extra.get(extra_data.KEY) if isinstance(extra, dict) else None
    yield extra_data.restore(_read_plain_trace(row, default_id), stored_data)


def _read_plain_trace(row: Row, default_id: str) -> Trace:
    """Return the trace without its extra data."""
    lost: Counter[str] = Counter()
    chat = expect_list(row.get("messages"), "messages")
    prompt, steps = split_into_steps(from_chat(message, lost) for message in chat)
    episode = str(row.get("episode_id") or default_id)
    metrics = row.get("metrics") or {}
    ended: Ended = "submitted" if row.get("done") else "unknown"
    if metrics.get("truncated"):
        ended = "truncated"
    meta = {field: row[field] for field in META_FIELDS if row.get(field)}
    if isinstance(meta.get("extra"), dict):
        meta["extra"] = {key: value for key, value in meta["extra"].items() if key != extra_data.KEY}
    if (tool_trace := row.get("tool_trace")) and tool_trace != _to_tool_trace(steps, bool(row.get("done"))):
        meta["tool_trace"] = tool_trace
    meta |= {"lost": dict(lost)} if lost else {}
    meta = {field: value for field, value in meta.items() if value}
    return Trace(
        id=episode,
        task=_read_task(row.get("task"), episode),
        prompt=prompt,
        steps=steps,
        reward=row.get("reward"),
        ended=ended,
        meta={META: meta} if meta else {},
    )


def _read_task(task: Any, episode: str) -> Task:
    if isinstance(task, str):
        return Task(id=f"task-{sha256(task.encode(errors='replace')).hexdigest()[:12]}", prompt=task)
    if not isinstance(task, dict):
        return Task(id=episode)
    if set(task) <= set(Task.model_fields) and isinstance(task.get("id"), str):  # written by `_to_rows`
        return Task.model_validate(task)
    name = next((task[key] for key in ("id", "instance_id", "task_id") if task.get(key) is not None), episode)
    prompt = next((task[key] for key in ("prompt", "problem_statement") if isinstance(task.get(key), str)), "")
    return Task(id=str(name), prompt=prompt, data=task)


def _to_rows(trace: Trace) -> Iterable[Row]:
    stored = trace.meta.get(META)
    meta: Row = stored if isinstance(stored, dict) else {}
    done = trace.ended == "submitted"
    metrics = dict(meta.get("metrics") or {})
    if trace.ended == "truncated":
        metrics["truncated"] = True
    row: Row = {
        "episode_id": trace.id,
        "messages": last_conversation(trace),
        "reward": trace.reward,
        "done": done,
        "tool_trace": meta.get("tool_trace", _to_tool_trace(trace.steps, done)),
        "metrics": metrics,
        "verify_metrics": meta.get("verify_metrics", {}),
        "artifacts": meta.get("artifacts", {}),
        "task": trace.task.model_dump(mode="json", exclude_defaults=True),
        "extra": dict(meta.get("extra") or {}),
    }
    if missing := extra_data.find_missing(trace, _read_plain_trace(row, trace.id)):
        row["extra"][extra_data.KEY] = missing
    yield row


def _to_tool_trace(steps: Iterable[TraceStep], done: bool) -> list[Row]:
    """Return each call with its result. Arguments that are not a JSON object are stored as text under "arguments"."""
    calls: list[Row] = []
    for step in steps:
        answers = {message.call_id: message.content for message in step.result or () if message.role == "tool"}
        for call in step.action.calls:
            if call.id not in answers:
                continue
            try:
                arguments = json.loads(call.arguments or "{}")
            except (ValueError, RecursionError):
                arguments = call.arguments
            if not isinstance(arguments, dict):
                arguments = {"arguments": call.arguments}
            result = {"data": answers[call.id], "done": False, "metadata": {}, "error": None}
            calls.append({"tool_name": call.name, "arguments": arguments, "result": result})
    if calls and done:
        calls[-1]["result"]["done"] = True
    return calls


FORMAT = LineFormat(
    about="OpenEnv's results.jsonl: one episode per line",
    recognises=lambda row: isinstance(row.get("episode_id"), str) and isinstance(row.get("messages"), list),
    traces=_read_traces,
    rows=_to_rows,
    file_name="results.jsonl",
    metadata={"metadata.json": b'{"written_by": "oven-controller"}\n'},
    extra_fields=(
        "tools", "solved", "ended", "policy", "meta",
        "steps.state", "steps.reward", "steps.sampled", "steps.outcome",
    ),
)  # fmt: skip
