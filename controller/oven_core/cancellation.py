"""Cancellation that is not lost: tasks are cancelled until they end, and a swallowed one is raised.

`asyncio.wait_for` on Python 3.11 returns the result when a cancellation comes together with it (CPython issue 86296),
nats-py waits with it, and swallows other cancellations itself. The task then continues, and anyone who waits for its
end waits for ever. So nothing here waits with `wait_for`, what nats-py swallows is raised again, and a task is told to
end more than once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger("oven")

AGAIN_S = 2.0
"""A task has so long to end; then it is told again."""
MOST_S = 10.0


def call_at_end(told: Callable[[], object], *more: signal.Signals) -> None:
    """Have the running event loop call `told` when this process is asked to end: at SIGTERM, SIGINT and `more`."""
    for number in (signal.SIGTERM, signal.SIGINT, *more):
        asyncio.get_running_loop().add_signal_handler(number, told)


@contextlib.contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raises CancelledError at the end of the block if the current task was told to end within, and what it awaited
    there kept that to itself. What had been said before the block does not count: a task that ends may clean up."""
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


async def end(*tasks: asyncio.Future[Any], within_s: float = MOST_S, again_s: float = AGAIN_S) -> None:
    """Cancel them, again after each `again_s` (a short one interrupts what a task does at its end), and wait for their
    end; whatever they end with is not news. One that has not ended within the limit is left alone, and that is
    logged: to wait for it would only hang its owner, too."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + within_s
    left = {task for task in tasks if not task.done()}
    while left and (rest := limit - loop.time()) > 0:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=min(rest, again_s))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # else asyncio complains that nobody looked
    for task in left:
        log.error("a task was told to end and did not within %g s: %r", within_s, task)
