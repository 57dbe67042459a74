"""Takes scalars from a logger on the training thread, and publishes them from another thread.

The training thread copies the values and appends them, with the arguments of the call, to a bounded queue. The tap's
thread polls the queue, reads the arguments, chooses one logger, merges the calls by step, and connects to the run.
Nothing on the training thread wakes another thread, as in the learner's link. A failure of the tap ends the tap, and
never the training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from oven_learner.import_hook import report

if TYPE_CHECKING:
    from oven_learner.tap.observer import Observer
    from oven_learner.tap.rows import Row

POLL_S = 0.05
"""Seconds between two looks at the queue."""
MAX_WAITING = 100_000
"""Maximum number of waiting calls. Older ones are dropped."""
CLOSE_TIMEOUT_S = 15.0
"""Maximum seconds that the end of the script waits for the last messages."""
MAX_UNDECIDED = 50
"""Number of calls after which the first logger is chosen, even if no name looks like a training metric."""
LATE_RANK_CALLS = 3
"""Number of further calls for which ranks other than 0 wait, so that rank 0 is observed if it logs at all."""
LOCK_FILE = "tap.lock"
"""File in the run's folder that the observed process locks, because a run has one learner."""

Arguments: TypeAlias = Mapping[str, Any]
"""The arguments of a call by name. Defaults are absent."""
Logged: TypeAlias = Iterable[tuple[Mapping[str, Any], Any]]
"""The values of a call by name, with their step or None. A call may have values of several steps."""
Reader: TypeAlias = Callable[[Any, Arguments], Logged]
"""Gets the copied values and the arguments of a call."""
Scalars: TypeAlias = tuple[str, Any, Mapping[str, float]]
"""A logger, a step or None, and numbers by name."""
Call: TypeAlias = tuple["_Method", Any, tuple[Any, ...], dict[str, Any]]
"""The method, the copied values, and the arguments of a call."""

Put: TypeAlias = Callable[[Call], None] | None
"""Queues a call. None: the call is not observed."""


class _Method(NamedTuple):
    logger: str
    parameters: tuple[str, ...]
    parameter: str
    """The one with the values."""
    read: Reader


class Tap:
    """The scalars of one process on their way to the run's log."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=MAX_WAITING)
        self._put: Put = self._put_first
        self._redirects: list[tuple[str, Callable[[Put], None]]] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._unreadable: set[str] = set()

    def wrap(self, logger: str, original: Callable[..., Any], parameter: str, read: Reader) -> Callable[..., Any]:
        """Wrap a logger's method, so that each call is also queued. Queueing never blocks and never raises. `read` gets
        the value of the parameter and all arguments, in another thread. Raises ValueError without such a parameter.

        One logger may call another one. The outer call is queued first, so that the outer logger is chosen.

        With cold caches each attribute costs up to a µs, and a function or a slice of `args` several. So the usual case
        is one function with few names.
        """
        method = _Method(logger, tuple(inspect.signature(original).parameters), parameter, read)
        position = method.parameters.index(parameter)
        put = self._put

        @functools.wraps(original)
        def log_and_record(*args: Any, **kwargs: Any) -> Any:
            if put is not None:
                try:
                    values = args[position] if len(args) > position else kwargs.get(parameter)
                    if type(values) is dict:
                        values = values.copy()  # the script may reuse its dictionary
                        for value in values.values():
                            if type(value) is not float and type(value) is not int:
                                _put_numbers(put, method, values, args, kwargs)
                                break
                        else:
                            put((method, values, args, kwargs))
                    elif type(values) is float or type(values) is int:
                        put((method, values, args, kwargs))
                    elif isinstance(values, (list, tuple)):
                        put((method, [*values], args, kwargs))
                    else:
                        _put_numbers(put, method, values, args, kwargs)
                except Exception as error:
                    self._report_unreadable(logger, error)
            return original(*args, **kwargs)

        def redirect(new_put: Put) -> None:
            nonlocal put
            put = new_put

        self._redirects.append((logger, redirect))
        return log_and_record

    def close(self) -> None:
        """Publish what is left, and the end of the run. Called when the script ends."""
        if self._thread is not None:
            self._closing.set()
            self._thread.join(CLOSE_TIMEOUT_S)

    def _put_first(self, call: Call) -> None:
        with self._lock:
            if self._thread is None:
                self._redirect(self._calls.append)
                self._thread = threading.Thread(target=self._run, name="oven-tap", daemon=True)
                self._thread.start()
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self._forget)
        self._calls.append(call)

    def _redirect(self, put: Put) -> None:
        self._put = put
        for _, redirect in list(self._redirects):
            redirect(put)

    def _ignore(self, logger: str) -> None:
        for name, redirect in list(self._redirects):
            if name == logger:
                redirect(None)

    def _forget(self) -> None:
        """Turn the tap off in a forked child, which has no thread that would publish."""
        self._redirect(None)
        self._thread = None

    def _run(self) -> None:
        try:
            logger, first_calls = self._choose_logger()
            if logger:
                self._publish(logger, first_calls)
        except Exception as error:
            report(f"the script is not observed any more, because of {type(error).__name__}: {error}; it continues")
        self._redirect(None)
        self._calls.clear()

    def _take_calls(self) -> Iterator[Scalars]:
        """Yield the logger, the step, and the numbers of what is waiting, oldest first."""
        while self._calls:
            method, values, args, kwargs = self._calls.popleft()
            try:
                logged = method.read(values, dict(zip(method.parameters, args, strict=False)) | kwargs)
                scalars = [(method.logger, step, numbers_in(numbers)) for numbers, step in logged]
            except Exception as error:
                self._report_unreadable(method.logger, error)
            else:
                yield from (each for each in scalars if each[2])

    def _choose_logger(self) -> tuple[str, list[Scalars]]:
        """Return the first logger with a training metric, if this process may be observed, or an empty string. Return
        the calls until then, too."""
        from oven_learner.tap.rows import is_training_metric

        calls: list[Scalars] = []
        chosen, needed_calls = "", 0
        while True:
            is_last_look = self._closing.wait(POLL_S)
            calls += self._take_calls()
            if not chosen and calls:
                named = (logger for logger, _, values in calls if any(map(is_training_metric, values)))
                chosen = next(named, calls[0][0] if is_last_look or len(calls) >= MAX_UNDECIDED else "")
                needed_calls = len(calls) + (LATE_RANK_CALLS if int(os.environ.get("RANK") or 0) else 0)
            if chosen and (is_last_look or len(calls) >= needed_calls):
                break
            if is_last_look:
                return "", []
        if any(thread.name == "oven-relay" for thread in threading.enumerate()):
            report(f"{chosen} is not observed, because the script connects to the run itself")
            return "", []
        return chosen if _lock_run() else "", calls

    def _publish(self, chosen: str, first_calls: Iterable[Scalars]) -> None:
        from oven_learner.link.find_controller import Connection
        from oven_learner.tap.observer import Observer
        from oven_learner.tap.rows import ColumnNames, Rows

        connection = Connection.find()
        observer = Observer(connection)
        report(f"observing what the script logs to {chosen}, as run {connection.run}")
        rows, names, ignored = Rows(), ColumnNames(), {chosen}
        are_dropped = False

        def observe(row: Row | None) -> None:
            if row is not None:
                observer.observe(row.step, names.rename(row.values))

        while True:
            is_last_look = self._closing.wait(POLL_S)
            are_dropped = are_dropped or len(self._calls) == MAX_WAITING
            for logger, step, values in itertools.chain(first_calls, self._take_calls()):
                if logger == chosen:
                    observe(rows.add(values, step))
                elif logger not in ignored:
                    ignored.add(logger)
                    self._ignore(logger)
                    report(f"the script also logs to {logger}; only {chosen} is observed")
            first_calls = ()
            observer.answer()
            if is_last_look:
                break
        observe(rows.finish())
        if are_dropped:
            report(f"calls of {chosen} were dropped, because more than {MAX_WAITING:,} were waiting")
        self._end(observer)

    def _end(self, observer: Observer) -> None:
        error = getattr(sys, "last_value", None)  # the exception that ended the script
        if error is None:
            observer.close("completed")
        elif isinstance(error, KeyboardInterrupt):
            observer.close("stopped", "interrupted from the keyboard")
        else:
            observer.close("failed", f"{type(error).__name__}: {error}"[:500])

    def _report_unreadable(self, logger: str, error: Exception) -> None:
        if logger not in self._unreadable:
            self._unreadable.add(logger)
            report(f"a call of {logger} is not observed, because of {type(error).__name__}: {error}")


def _put_numbers(
    put: Callable[[Call], None], method: _Method, values: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Queue a call without the script's own tensors, which could change or stay in memory. A call without numbers is
    skipped."""
    numbers = numbers_in(values) if isinstance(values, Mapping) else numbers_in({"": values}).get("")
    if numbers is not None:
        position = method.parameters.index(method.parameter)
        args = tuple(None if index == position else arg for index, arg in enumerate(args))
        put((method, numbers, args, {name: arg for name, arg in kwargs.items() if name != method.parameter}))


def numbers_in(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers among the values, also those of nested mappings. Others, such as images, are skipped."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if type(value) not in (float, int):
            if isinstance(value, Mapping):
                numbers |= numbers_in(value, f"{prefix}{name}.")
                continue
            try:
                value = value.item()  # of a tensor, or a number of NumPy
            except (AttributeError, TypeError, ValueError, RuntimeError):
                continue  # not a number, or an array
            if type(value) not in (float, int):
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
