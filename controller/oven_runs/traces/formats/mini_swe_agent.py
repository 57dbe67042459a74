"""The trajectory format of mini-swe-agent 2.4, called "mini-swe-agent-1.1": a folder per task with one JSON file.

The files do not describe the agent's only tool, `bash`. They lack the model's answers that had a format error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_runs.traces.formats import extra_data
from oven_runs.traces.formats.chat_messages import (
    NotReadable,
    expect_list,
    from_chat,
    last_conversation,
    split_into_steps,
)
from oven_runs.traces.formats.trace_format import READING_ERRORS, TraceFormat, malformed_line
from oven_runs.traces.jsonl import MAX_LINE_BYTES, MAX_REASON_CHARACTERS, BadLine
from oven_runs.traces.trace_records import Ended, Policy, Task, Tool, Trace

FORMAT_PREFIX: Final = "mini-swe-agent-1"
"""The value of `trajectory_format` must start with this."""
SUFFIX: Final = ".traj.json"
META: Final = "mini-swe-agent"  # key in Trace.meta, and prefix of every version of `trajectory_format`
BASH: Final = Tool(
    name="bash",
    description="Execute a bash command",
    parameters={
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
)
"""The tool as mini-swe-agent shows it to its models."""
_ENDED_BY_STATUS: Final[Mapping[str, Ended]] = {
    "": "unknown",
    "Submitted": "submitted",
    "LimitsExceeded": "turns",
    "TimeExceeded": "timeout",
}
"""How a trace ended, by `exit_status`. Any other status is the name of an error."""
_STATUS_BY_ENDED: Final[Mapping[Ended, str]] = {ended: status for status, ended in _ENDED_BY_STATUS.items()} | {
    "truncated": "ContextWindowExceededError",
    "error": "Error",
}


class MiniSweAgent(TraceFormat):
    """The trajectory format. A path is either a folder with one folder per task, or a single file."""

    def claims(self, path: Path) -> bool:
        """Return whether the first file is marked as a trajectory."""
        first = next(iter(_trajectory_files(path)), None)
        if first is None or (path.is_file() and path.suffix != ".json"):
            return False
        try:
            trajectory = json.loads(read_file(first, "the trajectory", MAX_LINE_BYTES))
        except (ValueError, RecursionError):
            return False
        return isinstance(trajectory, dict) and str(trajectory.get("trajectory_format", "")).startswith(META)

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """Yield each file's trace, sorted by file name."""
        files = _trajectory_files(path)
        if not files:
            raise ConfigError(f"{path} has no *{SUFFIX}; name the folder that mini-swe-agent wrote")
        for number, file in enumerate(files, 1):
            try:
                yield _read_trace(json.loads(read_file(file, "the trajectory", MAX_LINE_BYTES)), file)
            except READING_ERRORS as error:
                yield malformed_line(number, error, f"{file.name}: ")
            except ValueError as error:
                detail = str(error) if isinstance(error, ConfigError) else f"{file.name}: {reason(error)}"
                yield BadLine(number, "not_json", detail[:MAX_REASON_CHARACTERS])

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """Write a folder and a file for each trace. Raises ConfigError if `path` is a file, or if two traces would have
        the same file name."""
        if path.is_file():
            raise ConfigError(f"{path} is a file, but mini-swe-agent's trajectories need a folder: name a folder")
        names: set[str] = set()
        for trace in traces:
            name = _file_name(trace)
            if name in names or not name.strip("."):  # "." and ".." are folders already
                raise ConfigError(f"trace {trace.id!r} needs its own file, but the name {name!r} is already used")
            names.add(name)
            (path / name).mkdir(parents=True, exist_ok=True)
            text = json.dumps(_to_trajectory(trace), indent=2, ensure_ascii=False)
            write_atomic(path / name / f"{name}{SUFFIX}", text)
        return len(names)


def _trajectory_files(path: Path) -> list[Path]:
    return sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]


def _file_name(trace: Trace) -> str:
    return re.sub(r"[^\w.+-]", "_", trace.id)[:200]


def _read_trace(trajectory: Any, file: Path) -> Trace:
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("info"), dict):
        raise NotReadable("it has no info")
    stored_format = str(trajectory.get("trajectory_format", ""))
    if not stored_format.startswith(FORMAT_PREFIX):
        raise NotReadable(f"its format is {stored_format!r}; {FORMAT_PREFIX}.x can be read")
    plain = _read_plain_trace(trajectory, file.name.removesuffix(SUFFIX))
    return extra_data.restore(plain, trajectory["info"].get(extra_data.KEY))


def _read_plain_trace(trajectory: dict[str, Any], name: str) -> Trace:
    """Return the trace without its extra data."""
    info, lost = trajectory["info"], Counter[str]()
    rows = expect_list(trajectory.get("messages"), "messages")
    # The last row, with the role "exit", repeats the status and submission in `info`.
    chat = [row for row in rows if not (isinstance(row, dict) and row.get("role") == "exit")]
    if any(isinstance(row, dict) and "role" not in row for row in chat):
        raise NotReadable("its messages are items of the Responses API; record it with a chat model")
    prompt, steps = split_into_steps(from_chat(row, lost) for row in chat)
    status = str(info.get("exit_status") or "")
    model = (info.get("config") or {}).get("model") or {}
    instance = trajectory.get("instance_id")
    meta = {key: info[key] for key in ("model_stats", "config", "mini_version", "submission") if info.get(key)}
    meta |= {"exit_status": status} if status and status not in _ENDED_BY_STATUS else {}
    meta |= {"lost": dict(lost)} if lost else {}
    return Trace(
        id=name,
        task=Task(id=instance if isinstance(instance, str) and instance else name),
        tools=(BASH,) if any(call.name == BASH.name for step in steps for call in step.action.calls) else (),
        prompt=prompt,
        steps=steps,
        ended=_ENDED_BY_STATUS.get(status, "error"),
        policy=Policy(model=str(model.get("model_name") or "")),
        meta={META: meta} if meta else {},
    )


def _to_trajectory(trace: Trace) -> dict[str, Any]:
    stored = trace.meta.get(META)
    meta: dict[str, Any] = dict(stored) if isinstance(stored, dict) else {}
    meta.pop("lost", None)
    status = meta.get("exit_status") or _STATUS_BY_ENDED[trace.ended]
    submission = str(meta.get("submission") or "")
    exit_extra = {"exit_status": status, "submission": submission}
    exit_messages = [{"role": "exit", "content": submission or status, "extra": exit_extra}] if status else []
    config = meta.get("config") or {"model": {"model_name": trace.policy.model}}
    trajectory: dict[str, Any] = {
        "info": {**meta, "config": config, "exit_status": status, "submission": submission},
        "instance_id": trace.task.id,
        "messages": [*last_conversation(trace), *exit_messages],
        "trajectory_format": "mini-swe-agent-1.1",
    }
    trajectory["info"].setdefault("model_stats", {"instance_cost": 0.0, "api_calls": len(trace.steps)})
    if missing := extra_data.find_missing(trace, _read_plain_trace(trajectory, _file_name(trace))):
        trajectory["info"][extra_data.KEY] = missing
    return trajectory


FORMAT = MiniSweAgent(
    "mini-swe-agent's trajectories: a folder of *.traj.json",
    extra_fields=(
        "task", "tools", "reward", "solved", "policy", "meta",
        "steps.state", "steps.reward", "steps.sampled", "steps.outcome",
    ),
)  # fmt: skip
