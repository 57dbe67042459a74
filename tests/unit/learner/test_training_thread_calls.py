"""Calls between two steps, asked from other threads: who waits, who is told what, and that no thread hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from oven_core.errors import ConfigError
from oven_learner.baking.training_thread_calls import TrainingThreadCalls


def submit_from_another_thread(calls: TrainingThreadCalls, call: Callable[[], object]) -> Future[None]:
    """Returns once it waits."""
    thread = ThreadPoolExecutor(1)
    future = thread.submit(calls.submit, call)
    thread.shutdown(wait=False)
    while not calls._waiting and not future.done():  # noqa: SLF001
        pass
    return future


def test_it_is_called_in_the_trainings_thread_and_the_asker_gets_what_it_raised() -> None:
    calls, seen = TrainingThreadCalls(), []

    def wrong() -> None:
        raise ConfigError("the asker's")

    futures = [submit_from_another_thread(calls, lambda: seen.append(threading.get_ident()))]  # before training begins
    with calls.during_training():
        calls.run_waiting_calls()
        futures.append(submit_from_another_thread(calls, wrong))
        calls.run_waiting_calls()
        calls.run_waiting_calls()
    assert seen == [threading.get_ident()] and futures[0].result() is None
    with pytest.raises(ConfigError, match="the asker's"):
        futures[1].result()


def test_calls_are_rejected_when_training_ends() -> None:
    calls, seen = TrainingThreadCalls(), []
    with calls.during_training():
        waiting = submit_from_another_thread(calls, lambda: seen.append(1))
    for late in (waiting, submit_from_another_thread(calls, lambda: seen.append(2))):
        with pytest.raises(ConfigError, match=r"^training has ended$"):
            late.result()
    with calls.during_training():
        again = submit_from_another_thread(calls, lambda: seen.append(3))
        calls.run_waiting_calls()
    assert again.result() is None and seen == [3]


def test_the_error_that_ended_training_is_raised_to_later_callers() -> None:
    calls = TrainingThreadCalls()
    futures: list[Future[None]] = []

    def train() -> None:
        with calls.during_training():
            futures.append(submit_from_another_thread(calls, lambda: None))
            raise MemoryError("no room on the device")

    with pytest.raises(MemoryError):
        train()
    with pytest.raises(ConfigError, match=r"training has ended \(no room on the device\)"):
        futures[0].result()


def test_an_interrupt_during_a_call_is_the_trainings_and_no_asker_waits_for_ever() -> None:
    calls = TrainingThreadCalls()

    def interrupted() -> None:
        raise KeyboardInterrupt

    futures: list[Future[None]] = []

    def train() -> None:
        with calls.during_training():
            futures.extend(submit_from_another_thread(calls, call) for call in (interrupted, lambda: None))
            calls.run_waiting_calls()

    with pytest.raises(KeyboardInterrupt):
        train()
    with pytest.raises(ConfigError, match=r"ended during the call \(keyboard interrupt\)"):
        futures[0].result()
    with pytest.raises(ConfigError, match=r"training has ended \(keyboard interrupt\)"):
        futures[1].result()


def test_calls_from_the_trainings_own_thread_are_refused() -> None:
    calls = TrainingThreadCalls()
    with calls.during_training(), pytest.raises(ConfigError, match="would wait for itself"):
        calls.submit(lambda: None)


def test_asking_while_training_ends_is_answered_in_every_order() -> None:
    for _ in range(50):
        calls, start = TrainingThreadCalls(), threading.Barrier(5)

        def asker(calls: TrainingThreadCalls = calls, start: threading.Barrier = start) -> str:
            start.wait()
            try:
                calls.submit(lambda: None)
            except ConfigError as error:
                return str(error)
            return "called"

        with ThreadPoolExecutor(4) as threads:
            with calls.during_training():
                futures = [threads.submit(asker) for _ in range(4)]
                start.wait()
                calls.run_waiting_calls()
            assert {future.result() for future in futures} <= {"called", "training has ended"}
