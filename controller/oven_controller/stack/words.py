"""How processes and files are called on the terminal."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from oven_controller.stack.process import Child


def how(code: int) -> str:
    """How a process ended, from its code: a guard gives 128 plus the signal's number for its command."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


def last_words(child: Child) -> str:
    """The last line of its log, without `error:`; for what ended on purpose that is the reason."""
    lines = child.tail().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


def short(path: Path) -> str:
    """Relative to here where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
