"""Starts the confined child process, exchanges data with it within deadlines, and kills its process group."""

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
from oven_llm.sandbox.allow_list import Descriptors, folder_rules, repl_rules
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
"""The same as -I, but without -E: the environment is ours, and its PYTHONHASHSEED must count."""
ROOT: Final = str(Path(oven_llm.__file__).parents[1])
PIECE: Final = 1 << 16
"""Bytes per read. Buffers above 128 KiB would cost a system call each."""
PIPE_BYTES: Final = 1 << 20
"""Requested size of the pipes, for a large context."""
F_SETPIPE_SZ: Final = 1031
OPEN_FILES: Final = {"repl": 16, "tests": 256}
SLACK: Final = 4096
"""Maximum bytes of a report or an error line."""


class LockedChild:
    """A confined child process. If it cannot be confined, it runs no code and this raises ProcessError."""

    def __init__(
        self, machine: Machine, landlock: int, profile: Profile, limits: Limits, functions: Mapping[str, object]
    ) -> None:
        """`landlock`: Landlock's version, or 0 to run without it."""
        self._limits, self._profile, self._functions = limits, profile, functions
        self._machine, self._landlock = machine, landlock
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
        self._received: deque[tuple[int, bytes]] = deque()
        self._open: list[int] = []
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        lifeline, lifeline_end = os.pipe()
        self._open = [self._to, self._from, lifeline_end]
        descriptors = Descriptors(requests, replies, lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *FLAGS, "-c", BOOT, ROOT, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment(),
                cwd=self._profile.write or "/",
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"the sandbox cannot start {sys.executable}: {reason(error)}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for descriptor in (self._to, self._from):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError):  # above this user's limit; the usual size also works, but more slowly
                fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._can_send, self._can_receive = select.poll(), select.poll()
        self._can_send.register(self._to, select.POLLOUT)
        self._can_receive.register(self._from, select.POLLIN)
        deadline = time.monotonic() + self._limits.start_s
        try:
            self.send(frame(frames.SETUP, frames.encode(self._setup(descriptors))), deadline)
            kind, problem = self.receive(deadline)
        except DeadlineError:
            raise ProcessError(f"the sandbox did not start within {self._limits.start_s:g} s") from None
        except (GoneError, FrameError) as error:
            raise ProcessError(f"the sandbox did not start: {self._last_error_line() or error}") from None
        if kind != frames.READY or problem:
            raise ProcessError(f"the sandbox does not hold, so it is not used: {problem.decode(errors='replace')}")
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _environment(self) -> dict[str, str]:
        """Return an environment without the host's variables. A fixed hash seed makes resumed runs reproducible. The
        time zone needs no file, and numeric libraries use one thread."""
        variables = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
        variables |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if (folder := self._profile.write) is not None:
            variables |= {"HOME": str(folder), "TMPDIR": str(folder)}
        return variables

    def _setup(self, descriptors: Descriptors) -> dict[str, Any]:
        limits, profile, landlock = self._limits, self._profile, self._landlock
        paths = {"ruleset": ruleset(landlock).hex(), "grants": profile.grants(landlock)} if landlock else None
        rules = repl_rules(descriptors) if profile.name == "repl" else folder_rules(descriptors)
        return {
            "modules": profile.modules,
            "path": [str(profile.read.resolve()), *profile.packages] if profile.read is not None else [],
            "functions": list(self._functions),
            "numbers": dict(self._machine.numbers),
            "landlock": paths,
            "program": program(self._machine, rules).hex(),
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
        """Send bytes. Raises DeadlineError and GoneError."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._to, rest) :]
            except BlockingIOError:
                self._wait(self._can_send, deadline)
            except BrokenPipeError:
                raise GoneError(self._exit_reason()) from None

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """Return the kind and payload of the next frame. Raises DeadlineError, GoneError and FrameError."""
        while not self._received:
            self._wait(self._can_receive, deadline)
            try:
                piece = os.read(self._from, PIECE)
            except BlockingIOError:
                continue
            if not piece:
                raise GoneError(self._exit_reason())
            self._received.extend(self._reader.feed(piece))
        return self._received.popleft()

    @staticmethod
    def _wait(poll: select.poll, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(1000 * remaining):
            raise DeadlineError

    def _exit_reason(self) -> str:
        """Return how the process ended, once it has closed its pipes."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "its process closed its connection"
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process was killed by {signal.Signals(-code).name}"

    def _last_error_line(self) -> str:
        """Return the last line that Python printed in a child that did not start."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        output = (self._process.stderr.read() or b"").decode(errors="replace").strip()
        return output.splitlines()[-1] if output else ""

    def pause(self) -> None:
        """Stop the process between blocks. It may have reported the end of a block that still runs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def interrupt(self) -> None:
        """Kill the process from any thread. The thread that waits for it gets GoneError."""
        self._process.kill()

    def kill(self) -> None:
        """Kill the whole process group at once. May be called twice."""
        process = getattr(self, "_process", None)
        if process is not None:
            if process.poll() is None:
                self._signal(signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for descriptor in self._open:
            os.close(descriptor)
        self._open = []
