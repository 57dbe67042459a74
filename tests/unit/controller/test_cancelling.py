"""Tasks that keep a cancellation to themselves, and what ends them all the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from oven_core.cancellation import end, preserve_cancellation


async def begun(task: asyncio.Task[None]) -> asyncio.Task[None]:
    await asyncio.sleep(0)
    return task


async def swallowing(times: int, cancellations: list[int]) -> None:
    """Keeps the first cancellations to itself, as nats-py's `_flush_pending` does with each."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancellations.append(len(cancellations) + 1)
            if len(cancellations) > times:
                raise


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_task_that_swallows_cancellations_is_cancelled_until_it_ends(
    times: int, caplog: pytest.LogCaptureFixture
) -> None:
    cancellations: list[int] = []
    task = await begun(asyncio.create_task(swallowing(times, cancellations)))
    await end(task, interval_s=0.01)
    assert task.cancelled() and len(cancellations) == times + 1 and not caplog.records


async def test_a_task_that_never_ends_is_logged_and_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    cancellations: list[int] = []
    task = await begun(asyncio.create_task(swallowing(1_000_000, cancellations), name="deaf"))
    await end(task, limit_s=0.05, interval_s=0.01)
    assert not task.done() and "a task was cancelled but did not end within 0.05 s" in caplog.text
    assert "deaf" in caplog.text
    task.set_name("done with")
    cancellations.extend(range(1_000_000))  # the next one is heeded
    await end(task)
    assert task.cancelled()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_that_comes_with_the_result_is_heeded(fails: bool) -> None:
    """On Python 3.11 `wait_for` alone gives the result, or the error, and the task goes on."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def asks() -> None:
        with preserve_cancellation():
            await asyncio.wait_for(answer, 60)
        raise AssertionError("it went on")

    task = await begun(asyncio.create_task(asks()))
    if fails:
        answer.set_exception(ConnectionError("the answer"))
    else:
        answer.set_result(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_earlier_cancellation_does_not_count() -> None:
    cleaned = asyncio.Event()

    async def works() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with preserve_cancellation():
                await asyncio.sleep(0)
            cleaned.set()

    task = await begun(asyncio.create_task(works()))
    await end(task)
    assert cleaned.is_set()


async def test_a_timeout_around_the_block_stays_a_timeout() -> None:
    async def swallows() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def waits() -> None:
        async with asyncio.timeout(0.01):
            with preserve_cancellation():
                await swallows()

    with pytest.raises(TimeoutError):
        await waits()
    with preserve_cancellation():  # and nothing of it is left over
        await asyncio.sleep(0)


async def test_ending_tasks_that_have_ended_keeps_their_results() -> None:
    async def fails() -> None:
        raise ValueError("no")

    tasks = [asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(0))]
    await asyncio.wait(tasks)
    await end(*tasks)
    await end()
    assert [type(task.exception()) for task in tasks] == [ValueError, type(None)]


async def test_an_error_without_a_cancellation_is_raised_unchanged() -> None:
    with pytest.raises(ValueError, match=r"^no$"), preserve_cancellation():
        raise ValueError("no")
