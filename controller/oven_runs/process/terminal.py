"""A child that has the terminal in the foreground: the monitor.

It leads its own process group, which is made the terminal's foreground group: Ctrl-C, while the terminal is not in
raw mode (the child is still importing, or has crashed), reaches the child alone and not the stack. The other children
are in sessions of their own and have no terminal at all.
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
from oven_runs.process.child import PARENT_FD

TERMINAL = 0
_LEAVE = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[0m"
"""What a screen that crashed leaves on: the alternate buffer, a hidden cursor, mouse, focus and paste events."""


def has_terminal() -> bool:
    """Whether stdin and stdout are a terminal, and this process is in its foreground (not a background job)."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:
        return False


class Foreground:
    """A running child with the terminal. `wait` gives the terminal back as it was, however the child ended."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int, modes: list[Any] | None) -> None:
        self._process = process
        self._pipe = pipe
        self._modes = modes

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str]) -> Foreground:
        """Like Child.start, but for the streams and the process group. Raises ProcessError."""
        reader, writer = os.pipe()
        environment = {**os.environ, **env, PARENT_FD: str(reader)}
        before = modes()
        try:
            # Ctrl-Z before raw mode would stop it where no shell can start it again: it ignores that, as it inherits.
            with _ignored(signal.SIGTSTP):
                process = await asyncio.create_subprocess_exec(
                    *command, env=environment, pass_fds=(reader,), process_group=0
                )
        except OSError as error:
            os.close(writer)
            raise ProcessError(f"cannot start {command[0]}: {reason(error)}") from error
        finally:
            os.close(reader)
        _give_terminal(process.pid)
        return cls(process, writer, before)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Until it ended; its exit code."""
        code = await self._process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            _give_terminal(os.getpgrp())
            if self._modes is not None:
                with contextlib.suppress(termios.error), _ignored(signal.SIGTTOU):
                    termios.tcsetattr(TERMINAL, termios.TCSADRAIN, self._modes)
            if code != 0:
                with contextlib.suppress(OSError):  # the terminal was closed
                    sys.stdout.write(_LEAVE)
                    sys.stdout.flush()
        return code

    async def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace. Anyone who waits for it keeps waiting, and gives the terminal
        back."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()


def modes() -> list[Any] | None:
    """The terminal's, to give it back with; none where there is no terminal."""
    with contextlib.suppress(termios.error):
        return termios.tcgetattr(TERMINAL)
    return None


def take_back(modes: list[Any] | None) -> None:
    """The terminal as it was, from a child that was killed. For any thread, of a process that is about to end."""
    with contextlib.suppress(OSError, termios.error):
        if modes is None or os.tcgetpgrp(TERMINAL) == os.getpgrp():
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        os.tcsetpgrp(TERMINAL, os.getpgrp())
        termios.tcsetattr(TERMINAL, termios.TCSADRAIN, modes)
        os.write(1, _LEAVE.encode())


def _give_terminal(group: int) -> None:
    """A background group may do that only with SIGTTOU ignored."""
    with contextlib.suppress(OSError), _ignored(signal.SIGTTOU):
        os.tcsetpgrp(TERMINAL, group)


@contextlib.contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before if before is not None else signal.SIG_DFL)
