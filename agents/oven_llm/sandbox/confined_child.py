"""Starts a confined child process, exchanges data with it within deadlines, and kills it."""

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
from oven_llm.sandbox import message_format
from oven_llm.sandbox.allow_list import Descriptors, rules_for_repl, rules_for_tests
from oven_llm.sandbox.bpf import Machine, assemble_filter
from oven_llm.sandbox.child_conversation import ChildExitedError, DeadlineError
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError, FrameReader, pack_frame
from oven_llm.sandbox.profiles import Profile, pack_ruleset

CHILD_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from oven_llm.sandbox.inside.block_loop import serve; serve(*map(int, sys.argv[2:]))"
)
PYTHON_OPTIONS: Final = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""The options that -I implies, except for -E, because the child needs PYTHONHASHSEED from its environment."""
PACKAGE_ROOT: Final = str(Path(oven_llm.__file__).parents[1])
CHUNK_BYTES: Final = 1 << 16
"""Bytes per read. Buffers above 128 KiB would cost a system call each."""
PIPE_BYTES: Final = 1 << 20
"""Requested size of the pipes, so that a large context is sent fast."""
F_SETPIPE_SZ: Final = 1031
MAX_OPEN_FILES: Final = {"repl": 16, "tests": 256}
"""Maximum open files by profile."""
MAX_REPORT_BYTES: Final = 4096
"""Maximum bytes of an outcome or of an error line."""


class ConfinedChild:
    """A confined child process. Raises ProcessError, and runs no code, if it cannot be confined."""

    def __init__(
        self, machine: Machine, landlock_version: int, profile: Profile, limits: Limits, functions: Mapping[str, object]
    ) -> None:
        """Start the child. If `landlock_version` is 0, only seccomp confines it."""
        self._limits, self._profile, self._functions = limits, profile, functions
        self._machine, self._landlock_version = machine, landlock_version
        self._reader = FrameReader(
            {
                message_format.READY: MAX_REPORT_BYTES,
                message_format.OUT: limits.output_bytes,
                message_format.ERR: limits.output_bytes,
                message_format.CALL: limits.call_bytes,
                message_format.FINAL: limits.answer_bytes,
                message_format.REFUSED: MAX_REPORT_BYTES,
                message_format.DONE: MAX_REPORT_BYTES,
            }
        )
        self._frames: deque[tuple[int, bytes]] = deque()  # received, but not yet returned
        self._open_descriptors: list[int] = []
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        requests, self._request_pipe = os.pipe()
        self._reply_pipe, replies = os.pipe()
        lifeline, host_lifeline = os.pipe()
        self._open_descriptors = [self._request_pipe, self._reply_pipe, host_lifeline]
        descriptors = Descriptors(requests, replies, lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *PYTHON_OPTIONS, "-c", CHILD_PROGRAM, PACKAGE_ROOT, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._build_environment(),
                cwd=self._profile.write or "/",
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"could not start {sys.executable} for the sandbox: {reason(error)}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for descriptor in (self._request_pipe, self._reply_pipe):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError):  # if the user's limit is lower, the default size is kept
                fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self._send_poll, self._receive_poll = select.poll(), select.poll()
        self._send_poll.register(self._request_pipe, select.POLLOUT)
        self._receive_poll.register(self._reply_pipe, select.POLLIN)
        deadline = time.monotonic() + self._limits.start_s
        try:
            setup = message_format.encode(self._build_setup(descriptors))
            self.send(pack_frame(message_format.SETUP, setup), deadline)
            kind, problem = self.receive(deadline)
        except DeadlineError:
            raise ProcessError(f"the sandbox did not start within {self._limits.start_s:g} s") from None
        except (ChildExitedError, FrameError) as error:
            raise ProcessError(f"the sandbox did not start: {self._read_last_error_line() or error}") from None
        if kind != message_format.READY or problem:
            raise ProcessError(f"the sandbox is not used because it is not secure: {problem.decode(errors='replace')}")
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _build_environment(self) -> dict[str, str]:
        """Return the child's environment, without the host's variables. A fixed hash seed makes resumed runs
        reproducible. The time zone UTC0 requires no file, and numeric libraries use one thread."""
        variables = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
        variables |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if (folder := self._profile.write) is not None:
            variables |= {"HOME": str(folder), "TMPDIR": str(folder)}
        return variables

    def _build_setup(self, descriptors: Descriptors) -> dict[str, Any]:
        """Return the content of the first frame, from which the child confines itself (`inside/block_loop.py`)."""
        limits, profile, version = self._limits, self._profile, self._landlock_version
        landlock = {"ruleset": pack_ruleset(version).hex(), "grants": profile.grants(version)} if version else None
        rules = rules_for_repl(descriptors) if profile.name == "repl" else rules_for_tests(descriptors)
        return {
            "modules": profile.modules,
            "path": [str(profile.read.resolve()), *profile.package_folders] if profile.read is not None else [],
            "functions": list(self._functions),
            "numbers": dict(self._machine.numbers),
            "landlock": landlock,
            "program": assemble_filter(self._machine, rules).hex(),
            "resources": {
                "AS": limits.memory_bytes,
                "CORE": 0,
                "FSIZE": limits.file_bytes if profile.name == "tests" else 0,
                "NOFILE": MAX_OPEN_FILES[profile.name],
            },
            "output_bytes": limits.output_bytes,
            "answer_bytes": limits.answer_bytes,
            "call_bytes": limits.call_bytes,
        }

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes, deadline: float) -> None:
        """Send bytes before the deadline, a time of `time.monotonic`. Raises DeadlineError and ChildExitedError."""
        remaining = memoryview(data)
        while remaining:
            try:
                written_bytes = os.write(self._request_pipe, remaining)
                remaining = remaining[written_bytes:]
            except BlockingIOError:
                self._wait(self._send_poll, deadline)
            except BrokenPipeError:
                raise ChildExitedError(self._describe_exit()) from None

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """Return the kind and payload of the next frame. Raises DeadlineError, ChildExitedError and FrameError."""
        while not self._frames:
            self._wait(self._receive_poll, deadline)
            try:
                chunk = os.read(self._reply_pipe, CHUNK_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                raise ChildExitedError(self._describe_exit())
            self._frames.extend(self._reader.feed(chunk))
        return self._frames.popleft()

    @staticmethod
    def _wait(poll: select.poll, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(1000 * remaining):
            raise DeadlineError

    def _describe_exit(self) -> str:
        """Wait for the process to exit, and return the reason."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the process closed its connection"
        if code >= 0:
            return f"the process exited with code {code}"
        return f"the process was killed by {signal.Signals(-code).name}"

    def _read_last_error_line(self) -> str:
        """Return the last line that a child printed to standard error before it failed to start."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        output = (self._process.stderr.read() or b"").decode(errors="replace").strip()
        return output.splitlines()[-1] if output else ""

    def pause(self) -> None:
        """Suspend the process between blocks, because a thread may still run after the block has ended."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def interrupt(self) -> None:
        """Kill the process from any thread. ChildExitedError is raised in the thread that waits for it."""
        self._process.kill()

    def kill(self) -> None:
        """Kill the process group and close the pipes. May be called more than once."""
        process = getattr(self, "_process", None)  # None if the process could not be started
        if process is not None:
            if process.poll() is None:
                self._signal(signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for descriptor in self._open_descriptors:
            os.close(descriptor)
        self._open_descriptors = []
