"""The child process behind walls, as the host sees it: started, spoken to within deadlines, killed as a group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import oven_llm
from oven_core.errors import ProcessError, reason
from oven_llm.sandbox import frames
from oven_llm.sandbox.allow_list import Channel, folder_rules, repl_rules
from oven_llm.sandbox.bpf import Machine, program
from oven_llm.sandbox.exchange import DeadlineError, GoneError
from oven_llm.sandbox.frames import FrameError, Frames, frame
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.profiles import Profile, ruleset

BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from oven_llm.sandbox.inside.block_loop import serve; serve(*map(int, sys.argv[2:]))"
)
FLAGS: Final = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""As -I has them, but for -E: the environment is ours, and its PYTHONHASHSEED counts."""
ROOT: Final = str(Path(oven_llm.__file__).parents[1])
PIECE: Final = 1 << 16
"""Bytes that are read at a time: above 128 KiB the allocator would ask the kernel each time."""
PIPE_BYTES: Final = 1 << 20
"""The size that the pipes are asked to have, for a large context."""
F_SETPIPE_SZ: Final = 1031
OPEN_FILES: Final = {"repl": 16, "tests": 256}
SLACK: Final = 4096
"""Bytes of a report or an error line."""


class LockedChild:
    """Raises ProcessError where its walls do not stand: nothing runs in it then."""

    def __init__(
        self, machine: Machine, landlock: int, profile: Profile, limits: Limits, functions: Mapping[str, object]
    ) -> None:
        """`landlock`: its version, 0 to do without it."""
        self._limits = limits
        self._reader = Frames(
            {
                frames.READY: SLACK,
                frames.OUT: limits.output_bytes,
                frames.ERR: limits.output_bytes,
                frames.CALL: limits.call_bytes,
                frames.FINAL: limits.answer_bytes,
                frames.REFUSED: SLACK,
                frames.DONE: SLACK,
            }
        )
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._open: list[int] = []
        try:
            self._start(machine, landlock, profile, functions)
        except BaseException:
            self.kill()
            raise

    def _start(self, machine: Machine, landlock: int, profile: Profile, functions: Mapping[str, object]) -> None:
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        lifeline, held = os.pipe()
        self._open = [self._to, self._from, held]
        channel = Channel(requests, replies, lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *FLAGS, "-c", BOOT, ROOT, *map(str, channel.all)],
                pass_fds=channel.all,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment(profile),
                cwd=profile.write or "/",
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"the sandbox cannot start {sys.executable}: {reason(error)}") from None
        finally:
            for end in channel.all:
                os.close(end)
        for end in (self._to, self._from):
            os.set_blocking(end, False)
            with contextlib.suppress(OSError):  # beyond what this user may have: the usual size does, more slowly
                fcntl.fcntl(end, F_SETPIPE_SZ, PIPE_BYTES)
        self._can_send, self._can_receive = select.poll(), select.poll()
        self._can_send.register(self._to, select.POLLOUT)
        self._can_receive.register(self._from, select.POLLIN)
        deadline = time.monotonic() + self._limits.start_s
        try:
            self.send(
                frame(frames.SETUP, frames.encode(self._setup(machine, landlock, profile, channel, functions))),
                deadline,
            )
            kind, why = self.receive(deadline)
        except DeadlineError:
            raise ProcessError(f"the sandbox did not start within {self._limits.start_s:g} s") from None
        except (GoneError, FrameError) as error:
            raise ProcessError(f"the sandbox did not start: {self._last_line() or error}") from None
        if kind != frames.READY or why:
            raise ProcessError(f"the sandbox does not hold, so it is not used: {why.decode(errors='replace')}")
        assert self._process.stderr is not None
        self._process.stderr.close()

    @staticmethod
    def _environment(profile: Profile) -> dict[str, str]:
        """Nothing of the host's. Sets in the same order each time, so that a run that is resumed repeats itself; a time
        zone without a file; one thread for a library's own pools, if one is named."""
        own = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
        own |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return own | ({"HOME": str(profile.write), "TMPDIR": str(profile.write)} if profile.write is not None else {})

    def _setup(
        self, machine: Machine, landlock: int, profile: Profile, channel: Channel, functions: Mapping[str, object]
    ) -> dict[str, Any]:
        limits = self._limits
        walls = {"ruleset": ruleset(landlock).hex(), "grants": profile.grants(landlock)} if landlock else None
        rules = repl_rules(channel) if profile.name == "repl" else folder_rules(channel)
        return {
            "modules": profile.modules,
            "path": [str(profile.read.resolve()), *profile.packages] if profile.read is not None else [],
            "functions": list(functions),
            "numbers": dict(machine.numbers),
            "landlock": walls,
            "program": program(machine, rules).hex(),
            "resources": {
                "AS": limits.memory_bytes,
                "CORE": 0,
                "FSIZE": limits.file_bytes if profile.name == "tests" else 0,
                "NOFILE": OPEN_FILES[profile.name],
            },
            "output_bytes": limits.output_bytes,
            "answer_bytes": limits.answer_bytes,
            "call_bytes": limits.call_bytes,
        }

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes, deadline: float) -> None:
        """Raises DeadlineError and GoneError."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._to, rest) :]
            except BlockingIOError:
                self._wait(self._can_send, deadline)
            except BrokenPipeError:
                raise GoneError(self._end()) from None

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """The next frame. Raises DeadlineError, GoneError and FrameError."""
        while not self._waiting:
            self._wait(self._can_receive, deadline)
            try:
                piece = os.read(self._from, PIECE)
            except BlockingIOError:
                continue
            if not piece:
                raise GoneError(self._end())
            self._waiting.extend(self._reader.feed(piece))
        return self._waiting.popleft()

    @staticmethod
    def _wait(end: select.poll, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not end.poll(1000 * left):
            raise DeadlineError

    def _end(self) -> str:
        """How it ended. It has closed its pipes, so it is killed if it does not end in a moment."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "its process closed its connection"
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process was killed by {signal.Signals(-code).name}"

    def _last_line(self) -> str:
        """Of what Python says about a child that did not come up."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        said = (self._process.stderr.read() or b"").decode(errors="replace").strip()
        return said.splitlines()[-1] if said else ""

    def pause(self) -> None:
        """Between blocks nothing runs in it, though it may have said that it is done while it was not."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def interrupt(self) -> None:
        """From any thread: who waits for it is told that it is gone."""
        self._process.kill()

    def kill(self) -> None:
        """At once, with all that may belong to it. May be called twice."""
        process = getattr(self, "_process", None)
        if process is not None:
            if process.poll() is None:
                self._signal(signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for end in self._open:
            os.close(end)
        self._open = []
