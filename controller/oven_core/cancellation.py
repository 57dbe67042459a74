"""Helpers for reliable cancellation: cancel tasks until they end, and re-raise a swallowed cancellation.

On Python 3.11 `asyncio.wait_for` returns the result if a cancellation arrives together with it (CPython issue 86296).
nats-py uses `wait_for` and also swallows other cancellations. The task then continues, and its owner waits forever. So
this project does not use `wait_for`, re-raises cancellations that nats-py swallows, and cancels a task repeatedly.
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
"""A task that has not ended after this time is cancelled again."""
LIMIT_S = 10.0


def call_at_end(callback: Callable[[], object], *more: signal.Signals) -> None:
    """Have the running event loop call `callback` at SIGTERM, SIGINT and the signals in `more`."""
    for number in (signal.SIGTERM, signal.SIGINT, *more):
        asyncio.get_running_loop().add_signal_handler(number, callback)


@contextlib.contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raises CancelledError at the end of the block if the current task was cancelled within it and the awaited code
    swallowed that. A cancellation from before the block does not count, so that a task that ends can clean up."""
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


async def end(*tasks: asyncio.Future[Any], within_s: float = LIMIT_S, again_s: float = REPEAT_S) -> None:
    """Cancel tasks and wait for their end, whatever their results are.

    They are cancelled again after each `again_s`; a short time interrupts a task's cleanup. A task that has not ended
    within the limit is logged and abandoned, because waiting for it would hang its owner too.
    """
    loop = asyncio.get_running_loop()
    limit = loop.time() + within_s
    running = {task for task in tasks if not task.done()}
    while running and (rest := limit - loop.time()) > 0:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=min(rest, again_s))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # else asyncio complains about an unretrieved exception
    for task in running:
        log.error("a task was told to end and did not within %g s: %r", within_s, task)
