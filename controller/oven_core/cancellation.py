"""Helpers that make cancellation reliable: cancel tasks until they end, and re-raise swallowed cancellations.

On Python 3.11, `asyncio.wait_for` loses a cancellation that arrives together with the result (CPython issue 86296).
nats-py uses `wait_for` and also swallows other cancellations. The task then continues, and its owner waits forever. So
this project does not use `wait_for`, re-raises cancellations that nats-py swallows, and cancels tasks repeatedly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger("oven")

REPEAT_S = 2.0
"""Seconds after which a task that has not ended is cancelled again."""
LIMIT_S = 10.0
"""Seconds after which a task that has not ended is abandoned."""


def on_termination(callback: Callable[[], object], *more_signals: signal.Signals) -> None:
    """Have the running event loop call `callback` at SIGTERM, SIGINT and `more_signals`."""
    for number in (signal.SIGTERM, signal.SIGINT, *more_signals):
        asyncio.get_running_loop().add_signal_handler(number, callback)


@contextlib.contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raise CancelledError after the block if the block swallowed a cancellation of the current task.

    A cancellation from before the block does not count, so that an ending task can clean up."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task.cancelling() > before:
        raise asyncio.CancelledError


async def end(*tasks: asyncio.Future[Any], limit_s: float = LIMIT_S, interval_s: float = REPEAT_S) -> None:
    """Cancel tasks and wait until they end, ignoring their results. Cancel them again every `interval_s` seconds.

    Do not choose a short interval, because each cancellation interrupts a task's cleanup. A task that has not ended
    within `limit_s` is logged and abandoned, so that the caller can continue."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    running = {task for task in tasks if not task.done()}
    while running and (remaining_s := deadline - loop.time()) > 0:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=min(remaining_s, interval_s))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # otherwise asyncio reports an exception that was never retrieved
    for task in running:
        log.error("a task was cancelled but did not end within %g s: %r", limit_s, task)
