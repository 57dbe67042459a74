"""Logs a supervisor's run in three JSON Lines files, and reads them when the run is resumed.

`supervisor.jsonl` and `worker.jsonl` contain the calls. `repl.jsonl` contains the programs with their output. The
fields are those of the project Supervisor Distillation and a few more. `step` is the number of the supervisor's turn. A
failed call has `failure` instead of `response`. A resumed run reuses the replies in these files."""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

from oven_core.errors import ConfigError, OvenError, StoreInUseError, reason
from oven_llm.providers.conversation import ModelReply
from oven_llm.providers.failures import KINDS, ModelFailure
from oven_llm.providers.usage import USAGE_ADAPTER
from oven_llm.supervisor.repl import Execution
from oven_runs.traces.jsonl import truncate_incomplete

Role = Literal["supervisor", "worker"]
Prompt: TypeAlias = Sequence[Mapping[str, str]] | str
"""The supervisor's messages, or the worker's prompt."""
LOG_FILES: Final = ("supervisor.jsonl", "worker.jsonl", "repl.jsonl")
LOCK_FILE: Final = "lock"
"""Name of an empty file, which the process that writes to the folder locks."""
REFUSAL: Final = "refusal: the model refused to answer"
REDACTED: Final = "[removed]"
"""Replacement for secrets in all strings, because an endpoint may echo its API key."""


class RunLogger:
    """Appends events to one run's log files, without buffering. Without a folder, nothing is logged. Thread-safe."""

    def __init__(self, folder: str | Path | None, *, secrets: Sequence[str] = (), resume: bool = False) -> None:
        """Open the log files. `secrets` are never written. Raises ConfigError if the folder cannot be used, or contains
        a run although `resume` is False. Raises StoreInUseError while another process writes to it."""
        self.folder = Path(folder) if folder is not None else None
        self._secrets = [secret for secret in secrets if secret]
        self._lock = threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[LOCK_FILE] = lock_folder(self.folder)
            paths = [self.folder / name for name in LOG_FILES]
            if not resume and any(path.exists() and path.stat().st_size for path in paths):
                raise ConfigError(
                    f"the log folder {folder} already contains a run: use another folder, or resume that run "
                    "(resume=True, --resume)"
                )
            for path in paths:
                if path.is_file():
                    with path.open("rb+") as file:
                        truncate_incomplete(file)
                self._files[path.name] = path.open("ab", buffering=0)
        except OvenError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ConfigError(f"cannot write to the log folder {folder}: {reason(error)}") from error

    def close(self) -> None:
        """Close the files. Calls that finish later are not logged."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files = {}

    def log_call(
        self,
        role: Role,
        step: int,
        call: int,
        model: str,
        prompt: Prompt,
        outcome: ModelReply | ModelFailure,
        elapsed_s: float,
    ) -> None:
        """Log a call. `call` is its number among the role's calls. Raises OSError."""
        content = {"prompt": prompt} if isinstance(prompt, str) else {"messages": [dict(message) for message in prompt]}
        event = {"step": step, "call": call, "timestamp": _now(), "model": model, **content}
        if isinstance(outcome, ModelFailure):
            event |= {"failure": str(outcome)}
        else:
            is_refusal = outcome.finish == "refusal"
            event |= {"failure": REFUSAL} if is_refusal else {"response": outcome.text}
            event |= {
                "usage": None if outcome.usage is None else asdict(outcome.usage),
                "elapsed": round(elapsed_s, 6),
                "usd": outcome.cost_usd,
                "finish": outcome.finish,
            }
        self._write(f"{role}.jsonl", event)

    def log_program(self, step: int, execution: Execution) -> None:
        """Log a program and its outcome. Raises OSError."""
        block = execution.block
        self._write(
            "repl.jsonl",
            {
                "step": step,
                "timestamp": _now(),
                "code": execution.code,
                "stdout": block.stdout,
                "stderr": block.stderr,
                "elapsed": round(block.child_s + block.host_s, 6),
                "ended": block.ending,
                "error": block.error,
                "answer": None if block.answer is None else {"value": block.answer.value},
                "refused": list(block.refusal_reasons),
                "dropped": block.dropped_count,
                "calls": block.call_count,
            },
        )

    def _write(self, name: str, event: dict[str, Any]) -> None:
        if self.folder is None:
            return
        if self._secrets:
            event = self._remove_secrets(event)
        # A program may print an unpaired surrogate, which UTF-8 cannot encode.
        data = json.dumps(event, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with self._lock:
            file = self._files.get(name)
            if file is None:
                return
            remaining = memoryview(data)
            try:
                while remaining:
                    written_bytes = file.write(remaining)
                    remaining = remaining[written_bytes:]
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.folder / name)) from None

    def _remove_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            return remove_secrets(value, self._secrets)
        if isinstance(value, list | tuple):
            return [self._remove_secrets(item) for item in value]
        if isinstance(value, Mapping):
            return {self._remove_secrets(key): self._remove_secrets(item) for key, item in value.items()}
        return value


class RecordedCalls:
    """The recorded calls of an interrupted run. Each call is returned once, in the original order."""

    def __init__(self, folder: Path | None) -> None:
        """Read the calls from a log folder, if there is one. Raises ConfigError if a file is damaged."""
        self._outcomes: dict[bytes, deque[ModelReply | ModelFailure]] = {}
        self._programs: Counter[tuple[int, str]] = Counter()
        self.paid_replies: list[tuple[str, ModelReply]] = []
        """All replies with their roles, including refusals."""
        if folder is None:
            return
        try:
            self._read(folder)
        except ConfigError as error:
            raise ConfigError(f"the run in {folder} cannot be resumed: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the run in {folder} cannot be resumed: an event is incomplete ({reason(error)})"
            ) from error

    def _read(self, folder: Path) -> None:
        last_answered_step = 0
        for role, prompt_field in (("supervisor", "messages"), ("worker", "prompt")):
            # Calls of a batch are logged when they finish, but a resumed run makes them in the order of their numbers.
            for event in sorted(_read_events_if_any(folder / f"{role}.jsonl"), key=lambda event: event["call"]):
                outcome: ModelReply | ModelFailure
                if "usage" in event:
                    self.paid_replies.append((role, _parse_reply(event)))
                if "response" in event:
                    outcome = _parse_reply(event)
                    if role == "supervisor":
                        last_answered_step = max(last_answered_step, event["step"])
                elif role == "worker" and event["step"] < last_answered_step:
                    outcome = _parse_failure(event)  # the supervisor has already reacted to this failure
                else:
                    continue  # the call is repeated
                key = _hash_call(role, event["model"], event[prompt_field])
                self._outcomes.setdefault(key, deque()).append(outcome)
        for event in _read_events_if_any(folder / "repl.jsonl"):
            self._programs[event["step"], event["code"]] += 1

    def take(self, role: Role, model: str, prompt: Prompt) -> ModelReply | ModelFailure | None:
        """Return the next recorded outcome of the same call; None if there is none. Not thread-safe."""
        outcomes = self._outcomes.get(_hash_call(role, model, prompt)) if self._outcomes else None
        return outcomes.popleft() if outcomes else None

    def take_program(self, step: int, code: str) -> bool:
        """Return whether the log contains this program at that step. Each recorded program counts once."""
        if self._programs[step, code] <= 0:
            return False
        self._programs[step, code] -= 1
        return True


def lock_folder(folder: Path) -> BinaryIO:
    """Lock the folder until the returned file is closed, because two processes would pay for the same calls. Raises
    StoreInUseError while another process has locked the folder, and OSError if it cannot be written."""
    file = (folder / LOCK_FILE).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreInUseError(
            f"another process is writing to {folder}; wait until it ends, or use another folder"
        ) from None
    except OSError:
        pass  # a file system without locks
    return file


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in a log file of this package or of Supervisor Distillation. An incomplete last line is skipped.
    Raises ConfigError if the file cannot be read, and for a line that is not an event."""
    number = 0
    try:
        with path.open("rb") as file:  # text mode would also split lines at other line separators
            for line in file:
                number += 1
                if line.endswith(b"\n"):
                    event = json.loads(line)
                    if not isinstance(event, dict) or "step" not in event:
                        raise ValueError("expected an object with a `step`")
                    yield event
    except OSError as error:
        raise ConfigError(f"cannot read the log {path}: {error.strerror or reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"line {number} of the log {path} is not an event of a run ({reason(error)}); restore the original file, "
            "or move its folder away"
        ) from error


def remove_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with `REDACTED` instead of each secret."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # a secret may be a prefix of another
        text = text.replace(secret, REDACTED)
    return text


def _read_events_if_any(path: Path) -> Iterator[dict[str, Any]]:
    return read_events(path) if path.exists() else iter(())


def _hash_call(role: str, model: str, prompt: Prompt) -> bytes:
    content = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    return hashlib.sha256(json.dumps([role, model, content]).encode()).digest()


def _parse_reply(event: Mapping[str, Any]) -> ModelReply:
    usage = None if event["usage"] is None else USAGE_ADAPTER.validate_python(event["usage"])
    return ModelReply(event.get("response", ""), event["finish"], usage=usage, cost_usd=event["usd"])


def _parse_failure(event: Mapping[str, Any]) -> ModelFailure:
    kind, _, detail = event["failure"].partition(": ")
    return ModelFailure(kind if kind in KINDS else "internal", detail)


def _now() -> str:
    return datetime.now(UTC).isoformat()
