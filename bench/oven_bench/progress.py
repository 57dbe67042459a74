"""How far something long has come, on stderr: a bar in a terminal, else a line for every tenth, as a log wants it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int, str], None]
"""(so many more are done, the newest of them)."""


@contextlib.contextmanager
def progress(what: str, total: int, console: Console | None = None) -> Iterator[Advance]:
    console = console or Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda more, newest: bar.update(task, advance=more, description=newest)
        return
    begun, done = time.monotonic(), 0

    def advance(more: int, newest: str) -> None:
        nonlocal done
        before, done = done, done + more
        if 10 * done // total > 10 * before // total:
            console.print(f"{what}: {done} of {total} after {time.monotonic() - begun:.0f} s; {newest}", soft_wrap=True)

    yield advance
