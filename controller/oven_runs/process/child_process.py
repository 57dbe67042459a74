"""A child process with its own log, and a pipe that closes when its parent ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from oven_core.errors import ProcessError, reason

PARENT_FD = "OVEN_PARENT_FD"
"""Environment variable with the file descriptor of the pipe that closes when the parent ends."""
_released = threading.Event()
"""Set when the parent has called `Child.release`, or if there is no parent to wait for."""
KILL_TIMEOUT_S = 5.0
"""Seconds that a guard has to kill its command."""


class Child:
    """A running child process.

    A `foreign` program, such as nats-server, cannot watch the pipe to its parent, so a guard process watches it. Each
    child leads its own session. So Ctrl-C in the terminal reaches only the parent, which stops its children in order.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, pipe: int, foreign: bool) -> None:
        self.name = name
        self.log = log
        self._foreign = foreign
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        foreign: bool = False,
        restricted: bool = False,
        kill_descendants: bool = False,
        outlives_parent: bool = False,
    ) -> Child:
        """Start a child. Three options work for foreign programs only: `restricted` keeps the program off the trainer's
        cores, `kill_descendants` also ends every process that it started, even outside its group, and
        `outlives_parent` lets it continue if the parent is killed. Raises ProcessError."""
        reader, writer = os.pipe()
        environment = {**os.environ, **(env or {}), PARENT_FD: str(reader)}
        if foreign:
            options = [*(["restricted"] if restricted else []), *(["kill-descendants"] if kill_descendants else [])]
            guard = [sys.executable, "-P", "-m", "oven_runs.process.command_guard", str(reader), *options]
            command = [*guard, "--", *command]
            environment.pop(PARENT_FD)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as out:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=environment,
                    # With its own end to write to, the child never sees the pipe close.
                    pass_fds=(reader, writer) if outlives_parent else (reader,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(writer)
            raise ProcessError(f"cannot start {name} ({command[0]}): {reason(error)}") from error
        finally:
            os.close(reader)
        return cls(name, process, log, writer, foreign)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the child to end and return the exit code."""
        code = await self._process.wait()
        if self._foreign and code < 0:  # the guard was killed, so its command continues unguarded
            end_session(self.pid)
        return code

    def release(self) -> None:
        """Let the child return from `wait_until_released`."""
        with contextlib.suppress(BrokenPipeError):  # the child has ended
            os.write(self._pipe, b"1")

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self, grace_s: float = 5.0) -> int:
        """Send SIGTERM, and after the grace period SIGKILL to its group, then to its session. Return the exit code."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                code = await self.wait()
        except TimeoutError:
            self.kill()
            try:
                async with asyncio.timeout(KILL_TIMEOUT_S):
                    code = await self.wait()
            except TimeoutError:  # the guard did not pass the signal on
                end_session(self.pid)
                code = await self.wait()
        self.close()
        return code

    def kill(self) -> None:
        """Send SIGKILL to the child's group. A guard kills its command, which has its own group."""
        if self._process.returncode is not None:
            return
        if self._foreign:
            self._process.send_signal(signal.SIGUSR1)
        else:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipe. A child that is still running then ends by itself."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of the child's log, for an error message."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def end_session(leader: int) -> None:
    """Send SIGKILL to every process of a session whose leader has died. The system does not reuse the session's id
    while one of its processes is alive."""
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def follow_parent(grace_s: float = 10.0) -> None:
    """Send this process SIGTERM when its parent's pipe closes, and exit after a grace period. Call this before anything
    else in a child process."""
    if fd := os.environ.pop(PARENT_FD, ""):
        end_when_closed(int(fd), grace_s)
    else:
        _released.set()


def wait_until_released() -> None:
    """Wait until the parent calls `Child.release`. A child that takes long to import starts early and waits here."""
    _released.wait()


def end_with_input(grace_s: float = 60.0) -> None:
    """Send this process SIGTERM when its standard input ends, and exit after the grace period."""
    end_when_closed(sys.stdin.fileno(), grace_s)


def end_when_closed(fd: int, grace_s: float) -> None:
    """Send this process SIGTERM when the file descriptor reaches its end, and exit after the grace period."""

    def watch() -> None:
        while os.read(fd, 64):
            _released.set()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


WRONG_SETTING = 2
"""Exit code for a wrong setting, which a restart would not fix."""
EXTERNAL_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals from outside. They leave no error in the log, so its last line does not explain the exit."""


def describe_exit(code: int) -> str:
    """Describe an exit code. A guard exits with 128 plus the number of the signal that stopped its command."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


def describe_end(child: Child) -> str:
    """Describe how a child ended, with the last line of its log if that explains it."""
    code, lines = child.returncode or 0, child.tail().splitlines()
    exit_text = describe_exit(code)
    last_line = lines[-1] if lines else "its log is empty"
    is_error = last_line.startswith("error: ") and not exit_text.endswith(EXTERNAL_SIGNALS)
    cause = f": {last_line.removeprefix('error: ')}" if code == WRONG_SETTING or is_error else ""
    return f"{child.name} ended ({exit_text}){cause}"


def short_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside, and the path itself otherwise."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
