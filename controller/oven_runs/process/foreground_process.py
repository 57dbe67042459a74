"""Run a child process (the monitor) in the terminal's foreground.

The child leads its own process group, which becomes the terminal's foreground group. Ctrl-C therefore reaches only the
child and not the stack. That also works while the child is still importing or after it has crashed, when the terminal
is not in raw mode. The other children have their own sessions and no terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oven_core.errors import ProcessError, reason
from oven_runs.process.child_process import PARENT_FD

TERMINAL = 0  # file descriptor of standard input
_RESET_SEQUENCE = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[0m"
"""Escape sequence that undoes the modes of a crashed app: alternate buffer, hidden cursor, mouse, focus, paste."""


def has_terminal() -> bool:
    """Whether stdin and stdout are a terminal, and this process is not a background job."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:
        return False


class ForegroundProcess:
    """A running child process that owns the terminal. `wait` restores the terminal, no matter how the child ends."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int, modes: list[Any] | None) -> None:
        self._process = process
        self._pipe = pipe
        self._modes = modes

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str]) -> ForegroundProcess:
        """Start the child as the leader of a process group, with this process's streams. Raises ProcessError."""
        reader, writer = os.pipe()
        environment = {**os.environ, **env, PARENT_FD: str(reader)}
        previous_modes = terminal_modes()
        try:
            # The child inherits that Ctrl-Z is ignored. Otherwise, Ctrl-Z before raw mode would stop it for good.
            with _ignore(signal.SIGTSTP):
                process = await asyncio.create_subprocess_exec(
                    *command, env=environment, pass_fds=(reader,), process_group=0
                )
        except OSError as error:
            os.close(writer)
            raise ProcessError(f"cannot start {command[0]}: {reason(error)}") from error
        finally:
            os.close(reader)
        _give_terminal(process.pid)
        return cls(process, writer, previous_modes)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the child to end, restore the terminal and return the exit code."""
        code = await self._process.wait()
        if self._pipe >= 0:  # only the first call restores the terminal
            os.close(self._pipe)
            self._pipe = -1
            _give_terminal(os.getpgrp())
            if self._modes is not None:
                with contextlib.suppress(termios.error), _ignore(signal.SIGTTOU):
                    termios.tcsetattr(TERMINAL, termios.TCSADRAIN, self._modes)
            if code != 0:
                with contextlib.suppress(OSError):  # the terminal was closed
                    sys.stdout.write(_RESET_SEQUENCE)
                    sys.stdout.flush()
        return code

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. A concurrent `wait` restores the terminal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()


def terminal_modes() -> list[Any] | None:
    """Return the terminal's modes, which can be restored later, or None without a terminal."""
    with contextlib.suppress(termios.error):
        return termios.tcgetattr(TERMINAL)
    return None


def restore_terminal(modes: list[Any] | None) -> None:
    """Restore the terminal after a child was killed. Any thread may call this before the process exits."""
    with contextlib.suppress(OSError, termios.error):
        if modes is None or os.tcgetpgrp(TERMINAL) == os.getpgrp():
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        os.tcsetpgrp(TERMINAL, os.getpgrp())
        termios.tcsetattr(TERMINAL, termios.TCSADRAIN, modes)
        os.write(1, _RESET_SEQUENCE.encode())


def _give_terminal(group: int) -> None:
    """Make `group` the foreground group. A background process can do that only while it ignores SIGTTOU."""
    with contextlib.suppress(OSError), _ignore(signal.SIGTTOU):
        os.tcsetpgrp(TERMINAL, group)


@contextlib.contextmanager
def _ignore(number: signal.Signals) -> Iterator[None]:
    """Ignore the signal inside this context."""
    previous_handler = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, previous_handler if previous_handler is not None else signal.SIG_DFL)
