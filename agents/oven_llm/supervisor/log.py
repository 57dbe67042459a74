"""A supervised run's log: three files of JSON lines, in which each event stands as soon as it has happened.

`supervisor.jsonl` and `worker.jsonl` have the calls, `repl.jsonl` the programs with all that they printed. Their fields
are those of Supervisor Distillation and some more; a call that failed has `failure` in place of `response`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, Self

from oven_core.errors import ConfigError, OvenError, StoreInUseError, reason
from oven_llm.providers.failures import KINDS, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.models import LMResponse
from oven_llm.supervisor.repl import Execution

Prompt = Sequence[Mapping[str, str]] | str


class RecordedCalls:
    """Answers by what was asked of which model, each given out once, in the order of the calls."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: the log's; None, or one without files: nothing is recorded. Raises ConfigError for
        a file that is damaged before its last line."""
        self._outcomes: dict[bytes, deque[LMResponse | ModelFailure]] = {}
        self._programs: Counter[tuple[int, str]] = Counter()
        self.paid: list[tuple[str, Prompt, LMResponse]] = []
        """All answers, refusals among them, with their role and what was asked."""
        self.failed: Counter[str] = Counter()
        """Calls that were made and not answered, by role."""
        if folder is None:
            return
        try:
            self._read(folder)
        except ConfigError as error:
            raise ConfigError(f"the run in {folder} cannot be resumed: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the run in {folder} cannot be resumed: an event lacks parts ({reason(error)})"
            ) from error

    def _read(self, folder: Path) -> None:
        answered_step = 0
        for role, asked in (("supervisor", "messages"), ("worker", "prompt")):
            # A batch's calls are in the log as they ended; a resumed run asks in the order of their numbers.
            for event in sorted(_events(folder / f"{role}.jsonl"), key=lambda event: event["call"]):
                outcome: LMResponse | ModelFailure
                if "usage" in event:
                    self.paid.append((role, event[asked], _response(event)))
                elif _failure(event).kind != "budget":
                    self.failed[role] += 1
                if "response" in event:
                    outcome = _response(event)
                    if role == "supervisor":
                        answered_step = max(answered_step, event["step"])
                elif role == "worker" and event["step"] < answered_step:
                    outcome = _failure(event)  # the supervisor was told of it, and went on from there
                else:
                    continue  # it is asked again
                self._outcomes.setdefault(_key(role, event["model"], event[asked]), deque()).append(outcome)
        for event in _events(folder / "repl.jsonl"):
            self._programs[event["step"], event["code"]] += 1

    def take(self, role: Role, model: str, prompt: Prompt) -> LMResponse | ModelFailure | None:
        """The outcome of the same call, if there is one left. For one thread."""
        left = self._outcomes.get(_key(role, model, prompt)) if self._outcomes else None
        return left.popleft() if left else None

    def ran(self, step: int, code: str) -> bool:
        """Whether the log has this program of that step, once for each time that it is there."""
        if self._programs[step, code] <= 0:
            return False
        self._programs[step, code] -= 1
        return True


def _key(role: str, model: str, prompt: Prompt) -> bytes:
    asked = prompt if isinstance(prompt, str) else [dict(one) for one in prompt]
    return hashlib.sha256(json.dumps([role, model, asked]).encode()).digest()


def _response(event: Mapping[str, Any]) -> LMResponse:
    usage = None if event["usage"] is None else Usage.read(event["usage"])
    return LMResponse(event.get("response", ""), usage, event["elapsed"], "", event["usd"], event["finish"])


def _failure(event: Mapping[str, Any]) -> ModelFailure:
    kind, _, detail = event["failure"].partition(": ")
    return ModelFailure(kind if kind in KINDS else "internal", detail)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """None of a file that is not there yet."""
    return events(path) if path.exists() else iter(())


Role = Literal["supervisor", "worker"]
FILES: Final = ("supervisor.jsonl", "worker.jsonl", "repl.jsonl")
LOCK: Final = "lock"
"""Empty; the process that writes to the folder holds it."""
REMOVED: Final = "[removed]"
"""In place of a secret, wherever it came from: an endpoint may send the key back that it was sent."""


class RunLogger:
    """Appends to the files of one run; without a folder it does nothing. For several threads."""

    def __init__(self, folder: str | Path | None, *, secrets: Sequence[str] = (), resume: bool = False) -> None:
        """`secrets` are written nowhere. Raises ConfigError where the folder cannot be used, or holds a run already and
        `resume` does not say that this is the same one; StoreInUseError while another process writes to it."""
        self.folder = Path(folder) if folder is not None else None
        self._secrets = [secret for secret in secrets if secret]
        self._lock = threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        self._lock_file: BinaryIO | None = None
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(self.folder)
            if not resume and any(_size(self.folder / name) for name in FILES):
                raise ConfigError(
                    f"the log folder {folder} holds a run already: name another one, or resume that run "
                    "(resume=True, --resume)"
                )
            for name in FILES:
                _end_in_a_line(self.folder / name)
                self._files[name] = (self.folder / name).open("ab", buffering=0)
        except OvenError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ConfigError(f"the log folder {folder} cannot be written: {reason(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """What is written afterwards is lost: calls that were left behind end when they like."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files = {}
            if self._lock_file is not None:
                self._lock_file.close()
                self._lock_file = None

    def called(
        self,
        role: Role,
        step: int,
        call: int,
        model: str,
        prompt: Sequence[Mapping[str, str]] | str,
        response: LMResponse,
    ) -> None:
        """A call that was answered. `call`: its number among the role's. `prompt`: messages, of a worker its text.
        Raises OSError."""
        self._write(
            f"{role}.jsonl",
            _asked(step, call, model, prompt) | {"response": response.text, **_cost(response)},
        )

    def failed(
        self,
        role: Role,
        step: int,
        call: int,
        model: str,
        prompt: Sequence[Mapping[str, str]] | str,
        failure: ModelFailure,
        billed: LMResponse | None = None,
    ) -> None:
        """A call that was not answered, or by a refusal, which is `billed`. Raises OSError."""
        said = {"failure": str(failure)} | ({} if billed is None else _cost(billed))
        self._write(f"{role}.jsonl", _asked(step, call, model, prompt) | said)

    def ran(self, step: int, execution: Execution) -> None:
        """A program and its outcome. Raises OSError."""
        block = execution.block
        self._write(
            "repl.jsonl",
            {
                "step": step,
                "timestamp": _now(),
                "code": execution.code,
                "stdout": block.stdout,
                "stderr": block.stderr,
                "elapsed": round(block.own_s + block.host_s, 6),
                "ended": block.ended,
                "error": block.error,
                "answer": None if block.answer is None else {"value": block.answer.value},
                "refused": list(block.refused),
                "dropped": block.dropped,
                "calls": block.calls,
            },
        )

    def _write(self, name: str, event: dict[str, Any]) -> None:
        if self.folder is None:
            return
        if self._secrets:
            event = self._without_secrets(event)
        # A program may print half of a surrogate pair, which UTF-8 does not have.
        data = json.dumps(event, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with self._lock:
            file = self._files.get(name)
            if file is None:
                return
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.folder / name)) from None

    def _without_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            return without_secrets(value, self._secrets)
        if isinstance(value, list | tuple):
            return [self._without_secrets(one) for one in value]
        if isinstance(value, Mapping):
            return {self._without_secrets(key): self._without_secrets(one) for key, one in value.items()}
        return value


def lock(folder: Path) -> BinaryIO:
    """A file that is open while this process alone writes to the folder; closing it lets others. Raises StoreInUseError
    where another one does: both would pay for the same calls. Raises OSError where it cannot be written to."""
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreInUseError(f"another process writes to {folder}; wait for it, or name another folder") from None
    except OSError:
        pass  # a file system without locks
    return file


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one of the files, of ours or of Supervisor Distillation's. A last line without its end is left out:
    its writer was killed. Raises ConfigError for a file that cannot be read, and at a line that is not an event."""
    number = 0
    try:
        with path.open("rb") as file:  # as text, it would also be parted where a text within has another line's end
            for line in file:
                number += 1
                if line.endswith(b"\n"):
                    event = json.loads(line)
                    if not isinstance(event, dict) or "step" not in event:
                        raise ValueError("an object with a `step` was expected")
                    yield event
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be read: {error.strerror or reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the log {path}, line {number}, is not an event of a run ({reason(error)}); bring back the file as it was "
            "written, or move its folder away"
        ) from error


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `REMOVED` in the place of each secret."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(secret, REMOVED)
    return text


def _asked(step: int, call: int, model: str, prompt: Sequence[Mapping[str, str]] | str) -> dict[str, Any]:
    said = {"prompt": prompt} if isinstance(prompt, str) else {"messages": [dict(one) for one in prompt]}
    return {"step": step, "call": call, "timestamp": _now(), "model": model, **said}


def _cost(response: LMResponse) -> dict[str, Any]:
    return {
        "usage": None if response.usage is None else response.usage.plain(),
        "elapsed": round(response.elapsed, 6),
        "usd": response.usd,
        "finish": response.finish,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _end_in_a_line(path: Path) -> None:
    """Takes off what a process that was killed, or a full disk, left of a last line. Raises OSError."""
    if not _size(path) or not path.is_file():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep, at = 0, end
        while at > 0 and not keep:
            start = max(0, at - 65_536)
            file.seek(start)
            keep = start + piece.rindex(b"\n") + 1 if b"\n" in (piece := file.read(at - start)) else 0
            at = start
        if keep < end:
            file.truncate(keep)
