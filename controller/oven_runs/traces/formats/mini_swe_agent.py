"""mini-swe-agent's trajectories (2.4, "mini-swe-agent-1.1"): a JSON file a task, in a folder.

It has one tool, `bash`, and names it nowhere. What a model answered against the form is not among its messages.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_runs.traces.formats import aside
from oven_runs.traces.formats.chat_messages import NotReadable, from_chat, from_list, split, to_chat
from oven_runs.traces.jsonl import LINE_BYTES, SHOWN, BadLine
from oven_runs.traces.records import Ended, Message, Policy, Task, Tool, Trace

FORM: Final = "mini-swe-agent-1"
"""Beginning of `trajectory_format`."""
SUFFIX: Final = ".traj.json"
META: Final = "mini-swe-agent"
BASH: Final = Tool(
    name="bash",
    description="Execute a bash command",
    parameters={
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
)
"""Its tool, as its models are shown it."""
_ENDED: Final[Mapping[str, Ended]] = {
    "": "unknown",
    "Submitted": "submitted",
    "LimitsExceeded": "turns",
    "TimeExceeded": "timeout",
}
"""Its `exit_status`; any other is the name of an error."""
_STATUS: Final[Mapping[Ended, str]] = {ended: status for status, ended in _ENDED.items()} | {
    "truncated": "ContextWindowExceededError",
    "error": "Error",
}


@dataclass(frozen=True)
class MiniSweAgent:
    """A folder with a folder a task, or one file."""

    about: str = "mini-swe-agent's trajectories: a folder of *.traj.json"
    loses: dict[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = (
        "task", "tools", "reward", "solved", "policy", "meta",
        "steps.state", "steps.reward", "steps.sampled", "steps.own", "steps.outcome",
    )  # fmt: skip

    def claims(self, path: Path) -> bool:
        """Whether the first file says that it is one."""
        first = next(iter(_files(path)), None)
        if first is None or (path.is_file() and path.suffix != ".json"):
            return False
        try:
            said = json.loads(read_file(first, "the trajectory", LINE_BYTES))
        except (ValueError, RecursionError):
            return False
        return isinstance(said, dict) and str(said.get("trajectory_format", "")).startswith("mini-swe-agent")

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """Each file's trace, in the order of their names."""
        files = _files(path)
        if not files:
            raise ConfigError(f"{path} has no *{SUFFIX}; name the folder that mini-swe-agent wrote")
        for number, file in enumerate(files, 1):
            try:
                yield _trace(json.loads(read_file(file, "the trajectory", LINE_BYTES)), file)
            except NotReadable as error:
                yield BadLine(number, "malformed", f"{file.name}: {error}"[:SHOWN])
            except (ValidationError, RecursionError) as error:
                yield BadLine(number, "malformed", f"{file.name}: {reason(error)}"[:SHOWN])
            except (AttributeError, LookupError, TypeError) as error:
                why = f"{file.name}: a field has another form than it should ({reason(error)})"
                yield BadLine(number, "malformed", why[:SHOWN])
            except ValueError as error:
                fault = str(error) if isinstance(error, ConfigError) else f"{file.name}: {reason(error)}"
                yield BadLine(number, "not_json", fault[:SHOWN])

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """A folder and a file for each. Raises ConfigError where `path` is a file, or two traces would share a name."""
        if path.is_file():
            raise ConfigError(f"{path} is a file: mini-swe-agent's trajectories are a folder; name one")
        taken: set[str] = set()
        for trace in traces:
            name = re.sub(r"[^\w.+-]", "_", trace.id)[:200]
            if name in taken or name.strip(".") == "":
                raise ConfigError(f"the trace {trace.id!r} needs its own file, and the name {name!r} is taken")
            taken.add(name)
            (path / name).mkdir(parents=True, exist_ok=True)
            text = json.dumps(_row(trace), indent=2, ensure_ascii=False)
            write_atomic(path / name / f"{name}{SUFFIX}", text)
        return len(taken)


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]


def _trace(said: Any, file: Path) -> Trace:
    if not isinstance(said, dict) or not isinstance(said.get("info"), dict):
        raise NotReadable("it has no info")
    form = str(said.get("trajectory_format", ""))
    if not form.startswith(FORM):
        raise NotReadable(f"it is of the form {form!r}; {FORM}.x is read")
    return aside.restored(_plain(said, file.name.removesuffix(SUFFIX)), said["info"].get(aside.NAME))


def _plain(said: dict[str, Any], name: str) -> Trace:
    info, lost = said["info"], Counter[str]()
    rows = from_list(said.get("messages"), "messages")
    chat = [row for row in rows if not (isinstance(row, dict) and row.get("role") == "exit")]
    if any(isinstance(row, dict) and "role" not in row for row in chat):
        raise NotReadable("its messages are items of the Responses API; record it with a chat model")
    prompt, steps = split(from_chat(row, lost) for row in chat)
    status = str(info.get("exit_status") or "")
    model = (info.get("config") or {}).get("model") or {}
    instance = said.get("instance_id")
    kept = {key: info[key] for key in ("model_stats", "config", "mini_version", "submission") if info.get(key)}
    kept |= {"exit_status": status} if status and status not in _ENDED else {}
    kept |= {"lost": dict(lost)} if lost else {}
    return Trace(
        id=name,
        task=Task(id=instance if isinstance(instance, str) and instance else name),
        tools=(BASH,) if any(call.name == BASH.name for step in steps for call in step.action.calls) else (),
        prompt=prompt,
        steps=steps,
        ended=_ENDED.get(status, "error"),
        policy=Policy(model=str(model.get("model_name") or "")),
        meta={META: kept} if kept else {},
    )


def _row(trace: Trace) -> dict[str, Any]:
    found = trace.meta.get(META)
    kept: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    kept.pop("lost", None)
    messages: list[Message] = list(trace.state(len(trace.steps) - 1) if trace.steps else trace.prompt)
    for step in trace.steps[-1:]:
        messages += (step.action, *(step.result or ()))
    status = kept.get("exit_status") or _STATUS[trace.ended]
    submission = str(kept.get("submission") or "")
    exit_extra = {"exit_status": status, "submission": submission}
    exits = [{"role": "exit", "content": submission or status, "extra": exit_extra}] if status else []
    config = kept.get("config") or {"model": {"model_name": trace.policy.model}}
    row: dict[str, Any] = {
        "info": {**kept, "config": config, "exit_status": status, "submission": submission},
        "instance_id": trace.task.id,
        "messages": [*map(to_chat, messages), *exits],
        "trajectory_format": "mini-swe-agent-1.1",
    }
    row["info"].setdefault("model_stats", {"instance_cost": 0.0, "api_calls": len(trace.steps)})
    name = re.sub(r"[^\w.+-]", "_", trace.id)[:200]
    if missing := aside.difference(trace, _plain(row, name)):
        row["info"][aside.NAME] = missing
    return row


FORMAT = MiniSweAgent()
