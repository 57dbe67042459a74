"""The file of replies and its journal, with which an interrupted replay is resumed without paying for anything twice.

`replies.jsonl` has a line for each sample; the samples of one state are written at once. `replies.jsonl.asked` gets a
line for each state before a teacher is asked about it, and `replies.jsonl.lock` names the process that writes. A state
that was asked about and has no reply was in flight when an earlier process died. It is unknown whether it was billed.
So it is not asked again by default, and is recorded as a failure of the kind `interrupted`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Final, TypeAlias

from oven_core.errors import ConfigError, StoreInUseError, reason
from oven_runs.traces import jsonl
from oven_runs.traces.records import Reply, Trace

Key: TypeAlias = tuple[str, str, int]
"""Teacher, trace, step."""

INTERRUPTED: Final = "interrupted"
FINAL: Final = frozenset((INTERRUPTED, "refusal", "truncated", "no_action", "malformed_request"))
"""Kinds of failure that a retry would not change, or that may have been paid for."""
REJECTED: Final = "bad_request"
"""A kind of failure that is final if the teacher has answered about other states: this state is too long for it, for
example. If it has answered nothing, its settings are wrong and can be corrected."""
VERSION: Final = 1
"""Version of the journal. A reader refuses any other."""


class Settled:
    """Which states need no further question: a fold over replies, in the order of the file."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self._answered: set[Key] = set()
        self._failed: dict[Key, str] = {}
        self._answering: set[str] = set()
        """Teachers that have answered about any state."""
        for reply in replies:
            self.add(reply)

    def add(self, reply: Reply) -> None:
        """Add the next reply. Sample 0 begins a new question, whose outcome replaces the earlier one."""
        key = (reply.teacher, reply.trace, reply.step)
        if reply.sample == 0:
            self._failed.pop(key, None)
        if reply.action is not None:
            self._answered.add(key)
            self._answering.add(reply.teacher)
        elif self._failed.get(key) not in FINAL:  # among several samples, a final failure decides
            self._failed[key] = reply.failure

    def answered(self, key: Key) -> bool:
        """Return whether any sample is an action."""
        return key in self._answered

    def failed(self, key: Key) -> bool:
        """Return whether it failed for good."""
        failure = self._failed.get(key)
        return failure in FINAL or (failure == REJECTED and key[0] in self._answering)

    def failures(self) -> frozenset[Key]:
        """Return everything that failed for good."""
        return frozenset(key for key in self._failed if self.failed(key) and key not in self._answered)


class RepliesFile:
    """One writer's view of a file of replies. Close it after use."""

    def __init__(
        self,
        path: Path,
        traces: Sequence[Trace],
        teachers: Mapping[str, Mapping[str, object]],
        families: Mapping[str, str],
        *,
        again: bool = False,
    ) -> None:
        """`teachers`: each teacher's settings (`TeacherSettings.described`). `again`: ask once more about everything
        that has failed for good. Raises ConfigError for the file of another replay, and StoreInUseError while another
        process writes to it."""
        self.path = path
        self.interrupted = 0
        """States that were in flight when an earlier process died."""
        self._digests = {trace.id: trace.digests() for trace in traces}
        self._settled = Settled()
        self._recorded: Counter[Key] = Counter()
        """Questions per state that have replies in the file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = path.with_name(path.name + ".lock").open("ab+", buffering=0)
            self._journal = path.with_name(path.name + ".asked").open("ab+", buffering=0)
        except OSError as error:
            raise ConfigError(f"cannot write to {path}: {reason(error)}; name another file with --out") from error
        try:
            self._lock()
            if path.exists() and path.stat().st_size:
                self._read_replies()
            self._resume(teachers, families)
            self._out = path.open("ab+", buffering=0)
            jsonl.cut_unfinished(self._out)
        except BaseException:
            self._journal.close()
            self._lock_file.close()
            raise
        self._again = set(self._settled.failures() if again else ())

    def wants(self, key: Key) -> bool:
        """Return whether this teacher must still be asked about this state."""
        return not self._settled.answered(key) and (key in self._again or not self._settled.failed(key))

    def begin(self, key: Key) -> None:
        """Record that the teacher is asked next. Call this before the request. Raises OSError."""
        self._note("asked", key)

    def void(self, key: Key) -> None:
        """Record that the teacher was not asked after all: nothing was sent. Raises OSError."""
        self._note("void", key)

    def add(self, key: Key, replies: Sequence[Reply]) -> None:
        """Write all replies to one state at once. Raises OSError."""
        _write(self._out, b"".join(jsonl.line(reply) for reply in replies))
        self._enter(key, replies)
        self._again.discard(key)

    def close(self) -> None:
        """Close the files, and release the lock."""
        self._out.close()
        self._journal.close()
        self._lock_file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock_file.seek(0)
            pid = self._lock_file.read(20).decode(errors="replace").strip()
            holder = f"another process, {pid}, writes" if pid.isdigit() else "another process writes"
            raise StoreInUseError(f"{holder} to {self.path}; wait for it, or name another file with --out") from error
        except OSError as error:
            raise ConfigError(
                f"{self._lock_file.name} cannot be locked: {reason(error)}; name a file elsewhere"
            ) from error
        self._lock_file.truncate(0)
        self._lock_file.write(b"%d\n" % os.getpid())

    def _read_replies(self) -> None:
        for reply in jsonl.read(self.path, Reply, cut=True):
            digests = self._digests.get(reply.trace)
            if digests is None:
                continue  # to a trace that is not part of this replay
            if reply.step >= len(digests) or digests[reply.step] != reply.state:
                raise ConfigError(
                    f"{self.path} has replies to another state of trace {reply.trace!r}, step {reply.step}: the trace "
                    "has changed since; name another file with --out"
                )
            self._enter((reply.teacher, reply.trace, reply.step), (reply,))

    def _enter(self, key: Key, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._recorded[key] += reply.sample == 0
            self._settled.add(reply)

    def _resume(self, teachers: Mapping[str, Mapping[str, object]], families: Mapping[str, str]) -> None:
        jsonl.cut_unfinished(self._journal)
        self._journal.seek(0)
        for key in self._in_flight(self._journal.read().split(b"\n")[:-1], teachers):
            self._mark_interrupted(key, families)
        # Written at each start: a teacher may be new in this run, and the next run compares its settings too.
        self._append({"kind": "replay", "version": VERSION, "teachers": teachers})

    def _in_flight(self, lines: Iterable[bytes], teachers: Mapping[str, Mapping[str, object]]) -> list[Key]:
        questions: Counter[Key] = Counter()
        for line in lines:
            try:
                entry = json.loads(line)
                kind = entry["kind"]
                if kind != "replay":
                    questions[(entry["teacher"], entry["trace"], entry["step"])] += 1 if kind == "asked" else -1
            except (ValueError, LookupError, TypeError) as error:
                raise ConfigError(
                    f"{self.path}.asked is damaged ({reason(error)}); without it, what was paid for is unknown: name "
                    "another file with --out, or remove both"
                ) from error
            if kind == "replay":
                self._compare_settings(entry, teachers)
        return [key for key, count in questions.items() if key[1] in self._digests and count > self._recorded[key]]

    def _compare_settings(self, entry: Mapping[str, object], teachers: Mapping[str, Mapping[str, object]]) -> None:
        if entry.get("version") != VERSION or not isinstance(before := entry.get("teachers"), dict):
            raise ConfigError(
                f"{self.path}.asked is from another version of oven-controller; name another file with --out"
            )
        for name, described in teachers.items():
            if name in before and before[name] != json.loads(json.dumps(dict(described))):
                differing = [key for key in described if before[name].get(key) != described[key]]
                raise ConfigError(
                    f"{self.path} has replies of the teacher {name!r} with another {' and '.join(differing)}; give it "
                    "another name in the file of teachers, or name another file with --out"
                )

    def _mark_interrupted(self, key: Key, families: Mapping[str, str]) -> None:
        teacher, trace, step = key
        self.interrupted += 1
        if step >= len(self._digests[trace]):
            return
        state = self._digests[trace][step]
        reply = Reply(
            trace=trace, step=step, state=state, teacher=teacher,
            family=families.get(teacher, teacher), failure=INTERRUPTED,
        )  # fmt: skip
        jsonl.append(self.path, reply)
        self._enter(key, (reply,))

    def _note(self, kind: str, key: Key) -> None:
        teacher, trace, step = key
        self._append({"kind": kind, "teacher": teacher, "trace": trace, "step": step})

    def _append(self, entry: Mapping[str, object]) -> None:
        _write(self._journal, json.dumps(entry).encode() + b"\n")


def _write(out: RawIOBase, data: bytes) -> None:
    """Write all data, in one system call unless the disk is full, so that a killed process writes all or nothing.
    Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) or 0 :]
