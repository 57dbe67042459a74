"""Takes scalars from a logger on the training thread, and publishes them from another thread.

The training thread converts the values to numbers and appends them to a bounded queue. The tap's thread polls the
queue, chooses one logger, merges the calls by step, and connects to the run. Nothing on the training thread wakes
another thread, as in the learner's link. A failure of the tap ends the tap, and never the training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeAlias

from oven_learner.import_hook import report

if TYPE_CHECKING:
    from oven_learner.tap.observer import Observer
    from oven_learner.tap.rows import Row

POLL_S = 0.05
"""Seconds between two looks at the queue."""
MAX_WAITING = 100_000
"""Maximum number of waiting calls. Later ones are dropped and counted."""
CLOSE_TIMEOUT_S = 15.0
"""Maximum seconds that the end of the script waits for the last messages."""
MAX_UNDECIDED = 50
"""Number of calls after which the first logger is chosen, even if no name looks like a training metric."""
LATE_RANK_CALLS = 3
"""Number of further calls for which ranks other than 0 wait, so that rank 0 is observed if it logs at all."""
LOCK_FILE = "tap.lock"
"""File in the run's folder that the observed process locks, because a run has one learner."""

PLAIN = frozenset((float, int))
"""Types of the values that are queued unchanged."""

Logged: TypeAlias = Iterable[tuple[Mapping[str, Any], Any]]
"""The values of a call by name, with their step or None. A call may have values of several steps."""
Call: TypeAlias = tuple[str, Any, Mapping[str, float]]
"""The logger, the step, and the values of one call."""


class Tap:
    """The scalars of one process on their way to the run's log."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._dropped_count = 0
        self._is_off = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._logging_threads: set[int] = set()
        """Ids of the threads that are inside a logger's method. One logger may call another one."""

    def wrap(self, logger: str, original: Callable[..., Any], read: Callable[..., Logged]) -> Callable[..., Any]:
        """Wrap a logger's method, so that each call also queues what `read` returns for the same arguments. Queueing
        never blocks and never raises. It is one function, because each further call costs µs with cold caches."""
        calls, logging_threads = self._calls, self._logging_threads

        @functools.wraps(original)
        def log_and_record(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            if self._is_off or thread in logging_threads:
                return original(*args, **kwargs)
            logging_threads.add(thread)
            try:
                result = original(*args, **kwargs)
            finally:
                logging_threads.discard(thread)
            try:
                for values, step in read(*args, **kwargs):
                    numbers = dict(values)  # a copy, because the script may reuse its mapping and its tensors
                    if not PLAIN.issuperset(map(type, numbers.values())):
                        numbers = numbers_in(numbers)
                    if len(calls) >= MAX_WAITING:
                        self._dropped_count += 1
                    elif numbers:
                        calls.append((logger, step, numbers))
                if self._thread is None and calls:
                    self._start()
            except Exception as error:
                self._fail(error)
            return result

        return log_and_record

    def close(self) -> None:
        """Publish what is left, and the end of the run. Called when the script ends."""
        if self._thread is not None:
            self._closing.set()
            self._thread.join(CLOSE_TIMEOUT_S)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="oven-tap", daemon=True)
                self._thread.start()
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Turn the tap off in a forked child, which has no thread that would publish."""
        self._is_off, self._thread = True, None

    def _run(self) -> None:
        try:
            logger = self._choose_logger()
            if logger:
                self._publish(logger)
        except Exception as error:
            self._fail(error)
        self._is_off = True
        self._calls.clear()

    def _choose_logger(self) -> str:
        """Return the first logger with a training metric, when this process may be observed, or an empty string."""
        from oven_learner.tap.rows import is_training_metric

        chosen, needed_calls = "", 0
        while True:
            is_last_look = self._closing.wait(POLL_S)
            calls = list(self._calls)
            if not chosen and calls:
                named = (logger for logger, _, values in calls if any(map(is_training_metric, values)))
                chosen = next(named, calls[0][0] if is_last_look or len(calls) >= MAX_UNDECIDED else "")
                needed_calls = len(calls) + (LATE_RANK_CALLS if int(os.environ.get("RANK") or 0) else 0)
            if chosen and (is_last_look or len(calls) >= needed_calls):
                break
            if is_last_look:
                return ""
        if any(thread.name == "oven-relay" for thread in threading.enumerate()):
            report(f"{chosen} is not observed, because the script connects to the run itself")
            return ""
        return chosen if _lock_run() else ""

    def _publish(self, chosen: str) -> None:
        from oven_learner.link.find_controller import Connection
        from oven_learner.tap.observer import Observer
        from oven_learner.tap.rows import ColumnNames, Rows

        connection = Connection.find()
        observer = Observer(connection)
        report(f"observing what the script logs to {chosen}, as run {connection.run}")
        rows, names, ignored = Rows(), ColumnNames(), {chosen}

        def observe(row: Row | None) -> None:
            if row is not None:
                observer.observe(row.step, names.rename(row.values))

        while True:
            is_last_look = self._closing.wait(POLL_S)
            while self._calls:
                logger, step, values = self._calls.popleft()
                if logger == chosen:
                    observe(rows.add(values, step))
                elif logger not in ignored:
                    ignored.add(logger)
                    report(f"the script also logs to {logger}; only {chosen} is observed")
            observer.answer()
            if is_last_look:
                break
        observe(rows.finish())
        if self._dropped_count:
            report(f"{self._dropped_count} calls of {chosen} were dropped, because too many were waiting")
        self._end(observer)

    def _end(self, observer: Observer) -> None:
        error = getattr(sys, "last_value", None)  # the exception that ended the script
        if error is None:
            observer.close("completed")
        elif isinstance(error, KeyboardInterrupt):
            observer.close("stopped", "interrupted from the keyboard")
        else:
            observer.close("failed", f"{type(error).__name__}: {error}"[:500])

    def _fail(self, error: Exception) -> None:
        self._is_off = True
        report(f"the script is not observed any more, because of {type(error).__name__}: {error}; it continues")


def numbers_in(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers among the values, also those of nested mappings. Others, such as images, are skipped."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if type(value) not in PLAIN:
            if isinstance(value, Mapping):
                numbers |= numbers_in(value, f"{prefix}{name}.")
                continue
            try:
                value = value.item()  # of a tensor, or a number of NumPy
            except (AttributeError, TypeError, ValueError, RuntimeError):
                continue  # not a number, or an array
            if type(value) not in PLAIN:
                continue
        numbers[prefix + name] = value
    return numbers


def _lock_run() -> bool:
    """Lock the run for this process until it ends. Return False if another process is observed."""
    import fcntl

    folder = os.environ.get("OVEN_RUN_DIR", "")
    if not os.path.isdir(folder):
        return True
    file = os.open(os.path.join(folder, LOCK_FILE), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    os.close(file)
    return False
