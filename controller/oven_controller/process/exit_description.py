"""Words for the end of a process, and short paths, for the terminal."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from oven_controller.process.child import Child

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


def death(child: Child) -> str:
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
