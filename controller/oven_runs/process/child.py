"""A child process with its own log and a pipe that tells it when its parent is gone; and words for its end."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from oven_core.errors import ProcessError, reason

PARENT_FD = "OVEN_PARENT_FD"
KILLED_S = 5.0
"""So long a guard has to kill what it guards."""


class Child:
    """A running child. `foreign` ones cannot watch the pipe, so a guard process does it for them.

    Each is the leader of its own session: Ctrl-C in the terminal reaches the parent alone, which ends its
    children in order.
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
        whole: bool = False,
    ) -> Child:
        """`foreign`: it cannot watch a pipe. Of such a one, `restricted`: it keeps off the trainer's cores; `whole`:
        all that it started ends with it, what left its group as well."""
        reader, writer = os.pipe()
        environment = {**os.environ, **(env or {}), PARENT_FD: str(reader)}
        if foreign:
            command = [
                sys.executable,
                "-P",
                "-m",
                "oven_runs.process.guard",
                str(reader),
                *(["restricted"] if restricted else []),
                *(["whole"] if whole else []),
                "--",
                *command,
            ]
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
                    pass_fds=(reader,),
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
        code = await self._process.wait()
        if self._foreign and code < 0:  # the guard itself was killed, and its command goes on unguarded
            end_session(self.pid)
        return code

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self, grace_s: float = 5.0) -> int:
        """SIGTERM, then SIGKILL to its group after the grace, then to its session. Returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                code = await self.wait()
        except TimeoutError:
            self.kill()
            try:
                async with asyncio.timeout(KILLED_S):
                    code = await self.wait()
            except TimeoutError:  # a guard that does not pass it on
                end_session(self.pid)
                code = await self.wait()
        self.close()
        return code

    def kill(self) -> None:
        """SIGKILL to its group. A guard is asked to do that to its command, which has its own group."""
        if self._process.returncode is not None:
            return
        if self._foreign:
            self._process.send_signal(signal.SIGUSR1)
        else:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the pipe; a child that still runs ends by itself then."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def tail(self, lines: int = 12) -> str:
        """The last lines of its log, for an error message."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def end_session(leader: int) -> None:
    """SIGKILL to every process of a session whose leader is gone. (Its id is not given out again while one lives.)"""
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def follow_parent(grace_s: float = 10.0) -> None:
    """Called by an own process at start: SIGTERM to itself when the parent's pipe closes, exit after the grace."""
    if fd := os.environ.pop(PARENT_FD, ""):
        _end_after(int(fd), grace_s)


def end_with_input(grace_s: float = 60.0) -> None:
    """SIGTERM to itself when standard input ends, exit after the grace: who holds its other end is gone, or has let go
    of it."""
    _end_after(sys.stdin.fileno(), grace_s)


def follow_spawner(grace_s: float = 10.0) -> None:
    """The same for a worker of multiprocessing, which has a pipe of its parent's already. Raises RuntimeError in any
    other process."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("this process was not started by multiprocessing, and has no parent to follow")
    _end_after(parent.sentinel, grace_s)


def _end_after(fd: int, grace_s: float) -> None:
    def watch() -> None:
        while os.read(fd, 64):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


WRONG_SETTING = 2
"""The exit code that says so: starting again changes nothing."""
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Who is ended with these says nothing; the last line of its log is an older one."""


def how(code: int) -> str:
    """How a process ended, from its code: a guard gives 128 plus the signal's number for its command."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


def end_of(child: Child) -> str:
    """That it ended, how, and why: where that was on purpose it is the last line of its log."""
    code, lines = child.returncode or 0, child.tail().splitlines()
    last = lines[-1] if lines else "it said nothing"
    told = code == WRONG_SETTING or (last.startswith("error: ") and not how(code).endswith(FROM_OUTSIDE))
    why = f": {last.removeprefix('error: ')}" if told else ""
    return f"{child.name} ended ({how(code)}){why}"


def short(path: Path) -> str:
    """Relative to here where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
