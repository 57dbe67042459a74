"""The file of replies and its journal, by which a replay that was killed is resumed and pays for nothing twice.

`replies.jsonl` has a line for each sample, those of one state written at once. Beside it `replies.jsonl.asked` has a
line for each state before a teacher is asked about it, and `replies.jsonl.lock` the process that writes. A state that
was asked about and has no reply was under way when an earlier process died. Whether it was billed is not known, so it
is not asked again unless that is wanted, and is recorded as a failure of the kind `interrupted`.
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
"""Kinds of failure that asking again does not mend, or that were paid for."""
TURNED_DOWN: Final = "bad_request"
"""The kind that lasts where the teacher has answered about other states: this one is too long for it, say. Where it has
answered nothing, its settings are wrong, and can be mended."""
VERSION: Final = 1
"""Of the journal's form; another one is refused."""


class Settled:
    """Which states need no question any more: a fold over replies, in the order of the file."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self._answered: set[Key] = set()
        self._failed: dict[Key, str] = {}
        self._heard: set[str] = set()
        """Teachers that have answered about any state."""
        for reply in replies:
            self.enter(reply)

    def enter(self, reply: Reply) -> None:
        """Samples of one question follow each other, 0 the first: it begins a new question, whose outcome counts."""
        key = (reply.teacher, reply.trace, reply.step)
        if reply.sample == 0:
            self._failed.pop(key, None)
        if reply.action is not None:
            self._answered.add(key)
            self._heard.add(reply.teacher)
        elif self._failed.get(key) not in FINAL:  # of several samples one that was paid for is enough
            self._failed[key] = reply.failure

    def answered(self, key: Key) -> bool:
        """Whether there is an action of any sample."""
        return key in self._answered

    def failed(self, key: Key) -> bool:
        """Whether it failed for good."""
        failure = self._failed.get(key)
        return failure in FINAL or (failure == TURNED_DOWN and key[0] in self._heard)

    def failures(self) -> frozenset[Key]:
        """All that failed for good."""
        return frozenset(key for key in self._failed if self.failed(key) and key not in self._answered)


class RepliesFile:
    """One writer's view of a file of replies. Its maker closes it."""

    def __init__(
        self,
        path: Path,
        traces: Sequence[Trace],
        teachers: Mapping[str, Mapping[str, object]],
        families: Mapping[str, str],
        *,
        again: bool = False,
    ) -> None:
        """`teachers`: what each is asked with (`TeacherSettings.described`). `again`: what has failed for good by now
        is asked once more. Raises ConfigError for a file that is another replay's, and StoreInUseError where another
        process writes to it."""
        self.path = path
        self.interrupted = 0
        """States that were with a teacher when an earlier process died."""
        self._digests = {trace.id: trace.digests() for trace in traces}
        self._settled = Settled()
        self._ended: Counter[Key] = Counter()
        """Questions that have replies in the file, the one before it failed included."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._held = path.with_name(path.name + ".lock").open("ab+", buffering=0)
            self._journal = path.with_name(path.name + ".asked").open("ab+", buffering=0)
        except OSError as error:
            raise ConfigError(f"cannot write to {path}: {reason(error)}; name another file with --out") from error
        try:
            self._lock()
            if path.exists() and path.stat().st_size:
                self._read()
            self._resume(teachers, families)
            self._out = path.open("ab+", buffering=0)
            jsonl.cut_unfinished(self._out)
        except BaseException:
            self._journal.close()
            self._held.close()
            raise
        self._again = set(self._settled.failures() if again else ())
        """Those that are still to be asked once more."""

    def wants(self, key: Key) -> bool:
        """Whether this teacher has still to be asked about this state."""
        return not self._settled.answered(key) and (key in self._again or not self._settled.failed(key))

    def begin(self, key: Key) -> None:
        """The teacher is asked next: written before the call is made."""
        self._note("asked", key)

    def void(self, key: Key) -> None:
        """It was not asked after all: nothing was sent."""
        self._note("void", key)

    def add(self, key: Key, replies: Sequence[Reply]) -> None:
        """All that one state brought, in one write. Raises OSError."""
        _write(self._out, b"".join(jsonl.line(reply) for reply in replies))
        self._enter(key, replies)
        self._again.discard(key)

    def close(self) -> None:
        """Gives the file free for another process."""
        self._out.close()
        self._journal.close()
        self._held.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._held.seek(0)
            who = self._held.read(20).decode(errors="replace").strip()
            holder = f"another process, {who}, writes" if who.isdigit() else "another process writes"
            raise StoreInUseError(f"{holder} to {self.path}; wait for it, or name another file with --out") from error
        except OSError as error:
            raise ConfigError(f"{self._held.name} cannot be locked: {reason(error)}; name a file elsewhere") from error
        self._held.truncate(0)
        self._held.write(b"%d\n" % os.getpid())

    def _read(self) -> None:
        for reply in jsonl.read(self.path, Reply, cut=True):
            digests = self._digests.get(reply.trace)
            if digests is None:
                continue  # of a trace that is not asked about this time
            if reply.step >= len(digests) or digests[reply.step] != reply.state:
                raise ConfigError(
                    f"{self.path} has replies to another state of trace {reply.trace!r}, step {reply.step}: the trace "
                    "has changed since; name another file with --out"
                )
            self._enter((reply.teacher, reply.trace, reply.step), (reply,))

    def _enter(self, key: Key, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._ended[key] += reply.sample == 0
            self._settled.enter(reply)

    def _resume(self, teachers: Mapping[str, Mapping[str, object]], families: Mapping[str, str]) -> None:
        jsonl.cut_unfinished(self._journal)
        self._journal.seek(0)
        for key in self._under_way(self._journal.read().split(b"\n")[:-1], teachers):
            self._mark_interrupted(key, families)
        # Again at each start: a teacher may be new here, and the next call compares it, too.
        self._append({"kind": "replay", "version": VERSION, "teachers": teachers})

    def _under_way(self, lines: Iterable[bytes], teachers: Mapping[str, Mapping[str, object]]) -> list[Key]:
        asked: Counter[Key] = Counter()
        for line in lines:
            try:
                said = json.loads(line)
                kind = said["kind"]
                if kind != "replay":
                    asked[(said["teacher"], said["trace"], said["step"])] += 1 if kind == "asked" else -1
            except (ValueError, LookupError, TypeError) as error:
                raise ConfigError(
                    f"{self.path}.asked is damaged ({reason(error)}); without it, it is not known what was paid for: "
                    "name another file with --out, or remove both"
                ) from error
            if kind == "replay":
                self._compare(said, teachers)
        return [key for key, count in asked.items() if key[1] in self._digests and count > self._ended[key]]

    def _compare(self, said: Mapping[str, object], teachers: Mapping[str, Mapping[str, object]]) -> None:
        if said.get("version") != VERSION or not isinstance(before := said.get("teachers"), dict):
            raise ConfigError(
                f"{self.path}.asked is of another version of oven-controller; name another file with --out"
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

    def _append(self, line: Mapping[str, object]) -> None:
        _write(self._journal, json.dumps(line).encode() + b"\n")


def _write(out: RawIOBase, data: bytes) -> None:
    """All of it, in one call of the system's unless the disk is full: a process that is killed writes all or nothing.
    Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) or 0 :]
