"""OpenEnv's `results.jsonl` (0.10): an episode a line, with one reward an episode.

`openenv.core.harness.collect` has the form. A tool's result stands twice in it, as a message and in `tool_trace`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from oven_runs.traces.formats import aside
from oven_runs.traces.formats.chat_messages import from_chat, from_list, split, to_chat
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.records import Ended, Task, Trace, TraceStep

META = "openenv"
"""In `Trace.meta`: what an episode has and our records do not."""
KEPT = ("metrics", "verify_metrics", "artifacts", "extra")


def _known_by(row: Row) -> bool:
    return isinstance(row.get("episode_id"), str) and isinstance(row.get("messages"), list)


def _traces(row: Row, name: str) -> Iterator[Trace]:
    extra = row.get("extra") or {}
    yield aside.restored(_plain(row, name), extra.get(aside.NAME) if isinstance(extra, dict) else None)


def _plain(row: Row, name: str) -> Trace:
    lost: Counter[str] = Counter()
    prompt, steps = split(from_chat(one, lost) for one in from_list(row.get("messages"), "messages"))
    episode = row.get("episode_id") or name
    metrics = row.get("metrics") or {}
    ended: Ended = "truncated" if metrics.get("truncated") else "submitted" if row.get("done") else "unknown"
    kept = {field: row[field] for field in KEPT if row.get(field)}
    if isinstance(kept.get("extra"), dict):
        kept["extra"] = {key: value for key, value in kept["extra"].items() if key != aside.NAME}
    if (given := row.get("tool_trace")) and given != _tool_trace(steps, bool(row.get("done"))):
        kept["tool_trace"] = given
    kept |= {"lost": dict(lost)} if lost else {}
    kept = {field: value for field, value in kept.items() if value}
    return Trace(
        id=str(episode),
        task=_task(row.get("task"), str(episode)),
        prompt=prompt,
        steps=steps,
        reward=row.get("reward"),
        ended=ended,
        meta={META: kept} if kept else {},
    )


def _task(said: Any, episode: str) -> Task:
    if isinstance(said, str):
        return Task(id=f"task-{sha256(said.encode(errors='replace')).hexdigest()[:12]}", prompt=said)
    if not isinstance(said, dict):
        return Task(id=episode)
    if set(said) <= set(Task.model_fields) and isinstance(said.get("id"), str):
        return Task.model_validate(said)
    name = next((said[key] for key in ("id", "instance_id", "task_id") if said.get(key) is not None), episode)
    prompt = next((said[key] for key in ("prompt", "problem_statement") if isinstance(said.get(key), str)), "")
    return Task(id=str(name), prompt=prompt, data=said)


def _rows(trace: Trace) -> Iterable[Row]:
    kept = trace.meta.get(META)
    foreign: Row = {key: kept[key] for key in (*KEPT, "tool_trace") if key in kept} if isinstance(kept, dict) else {}
    last = [*trace.prompt] if trace.steps == () else [*trace.state(len(trace.steps) - 1)]
    for step in trace.steps[-1:]:
        last += (step.action, *(step.result or ()))
    done = trace.ended == "submitted"
    metrics = dict(foreign.get("metrics") or {})
    if trace.ended == "truncated":
        metrics["truncated"] = True
    row: Row = {
        "episode_id": trace.id,
        "messages": [to_chat(one) for one in last],
        "reward": trace.reward,
        "done": done,
        "tool_trace": foreign.get("tool_trace", _tool_trace(trace.steps, done)),
        "metrics": metrics,
        "verify_metrics": foreign.get("verify_metrics", {}),
        "artifacts": foreign.get("artifacts", {}),
        "task": trace.task.model_dump(mode="json", exclude_defaults=True),
        "extra": dict(foreign.get("extra") or {}),
    }
    if missing := aside.difference(trace, _plain(row, trace.id)):
        row["extra"][aside.NAME] = missing
    yield row


def _tool_trace(steps: Iterable[TraceStep], done: bool) -> list[Row]:
    """Each call with its result. Arguments that are not a JSON object stand under "arguments", as they were written."""
    found: list[Row] = []
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
            found.append({"tool_name": call.name, "arguments": arguments, "result": result})
    if found and done:
        found[-1]["result"]["done"] = True
    return found


def _beside() -> dict[str, bytes]:
    return {"metadata.json": b'{"written_by": "oven-controller"}\n'}


FORMAT = LineFormat(
    about="OpenEnv's results.jsonl: an episode a line",
    known_by=_known_by,
    traces=_traces,
    rows=_rows,
    file_name="results.jsonl",
    beside=_beside,
    aside=(
        "tools",
        "solved",
        "ended",
        "policy",
        "meta",
        "steps.state",
        "steps.reward",
        "steps.sampled",
        "steps.own",
        "steps.outcome",
    ),
)
