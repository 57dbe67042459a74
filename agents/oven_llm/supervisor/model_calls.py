"""Makes one model's calls within a run. Calls are logged and counted, and a resumed run reuses recorded replies."""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

from oven_llm.providers.conversation import Messages, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.model_handlers import ModelHandler
from oven_llm.supervisor.run_logger import Prompt, RecordedCalls, Role, RunLogger, remove_secrets

_Result = TypeVar("_Result")

TRUNCATION_MARK: Final = " [truncated: the answer reached the worker's token limit]"
"""Appended to a worker's truncated answer, so that programs do not mistake it for a complete one. The supervisor's
answers need no mark, because an incomplete block does not run."""
CallOutcome: TypeAlias = str | ModelFailure
"""The model's answer, or the reason why there is none."""


class CallThreads(Generic[_Result]):
    """A pool of daemon threads for calls that may hang. Unlike the threads of `concurrent.futures`, they do not keep
    the process alive. At most `limit` calls run at a time, in the order of submission."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: SimpleQueue[tuple[Future[_Result], Callable[[], _Result]] | None] = SimpleQueue()
        self._idle_threads = threading.Semaphore(0)
        self._thread_count = 0

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Queue a call, which runs with the caller's context variables. Not thread-safe."""
        context = contextvars.copy_context()
        future: Future[_Result] = Future()
        self._queue.put((future, lambda: context.run(call)))
        if not self._idle_threads.acquire(blocking=False) and self._thread_count < self._limit:
            self._thread_count += 1
            threading.Thread(target=self._serve, name=f"model-call-{self._thread_count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Stop each thread after its current call."""
        for _ in range(self._thread_count):
            self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            self._idle_threads.release()


class StoppedError(Exception):
    """The run was cancelled."""


class TimeLimit:
    """Measures a run's duration against a limit in seconds. None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._started_s = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def remaining(self) -> float | None:
        """Seconds until the limit; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed)

    def create_failure(self) -> ModelFailure:
        """Return the failure to report for a call that this limit stopped or prevented."""
        return ModelFailure("timeout", f"the run reached its limit of {self.seconds or 0:g} s")


@dataclass(frozen=True)
class _Call:
    turn: int
    """Number of the supervisor's turn that made the call."""
    number: int
    """Number of the call among the role's calls in this run, from 1."""
    prompt: Prompt

    @property
    def messages(self) -> Messages:
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt


class ModelCalls:
    """Makes all calls to the model of one role."""

    def __init__(
        self,
        role: Role,
        model: ModelHandler,
        limit: TimeLimit,
        logger: RunLogger,
        recorded_calls: RecordedCalls,
        cancellation: Future[None],
        concurrency: int = 1,
    ) -> None:
        """The future `cancellation` is done when the run is cancelled."""
        self._role, self._model, self._limit, self._logger = role, model, limit, logger
        self._recorded_calls, self._cancellation = recorded_calls, cancellation
        self._threads: CallThreads[CallOutcome] = CallThreads(concurrency)
        self._call_count = 0
        self._lock = threading.Lock()
        self.replies = [reply for paid_role, reply in recorded_calls.paid_replies if paid_role == role]
        """All replies, including refusals and those before the run was resumed."""
        self.failures: Counter[str] = Counter()
        """Number of failed calls by kind."""
        self.fatal_error: OSError | None = None
        """An error that must end the run, because the log cannot be written."""

    @property
    def usage(self) -> Usage:
        """Total usage of the calls that reported it."""
        return sum((reply.usage for reply in self.replies if reply.usage is not None), Usage(0, 0))

    def close(self) -> None:
        """Abandon the calls in progress."""
        self._threads.close()

    def ask(self, turn: int, prompts: Sequence[Prompt]) -> list[CallOutcome]:
        """Return one answer or failure per prompt of this turn of the supervisor. Raises StoppedError."""
        pending: list[CallOutcome | Future[CallOutcome]] = []
        for prompt in prompts:
            self._call_count += 1
            recorded_result = self._recorded_calls.take(self._role, self._model.model, prompt)
            if recorded_result is None:
                pending.append(self._threads.submit(partial(self._call_model, _Call(turn, self._call_count, prompt))))
            else:
                pending.append(self._convert_result(recorded_result))
        try:
            return [self._wait_for(item) if isinstance(item, Future) else item for item in pending]
        finally:
            for item in pending:
                if isinstance(item, Future):
                    item.cancel()

    def _wait_for(self, future: Future[CallOutcome]) -> CallOutcome:
        futures: tuple[Future[Any], ...] = future, self._cancellation
        concurrent.futures.wait(futures, self._limit.remaining, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            try:
                return future.result()
            except OSError as error:
                self.fatal_error = error
                return ModelFailure("internal", "the log cannot be written")
        if self._cancellation.done():
            raise StoppedError
        return self._limit.create_failure()

    def _call_model(self, call: _Call) -> CallOutcome:
        """Make, log and count one call in one of the threads. Raises OSError."""
        if self._limit.remaining == 0:
            return self._limit.create_failure()
        started = time.monotonic()
        result: ModelReply | ModelFailure
        try:
            reply = self._model.chat(call.messages)
            result = replace(reply, text=remove_secrets(reply.text, self._model.secrets))
            with self._lock:
                self.replies.append(result)
        except ModelFailure as failure:
            result = failure
        except Exception as error:  # the message may contain the API key
            result = ModelFailure("internal", type(error).__name__)
        elapsed_s = time.monotonic() - started
        self._logger.log_call(self._role, call.turn, call.number, self._model.model, call.prompt, result, elapsed_s)
        return self._convert_result(result)

    def _convert_result(self, result: ModelReply | ModelFailure) -> CallOutcome:
        """Return the text of a usable reply. Otherwise count and return the failure."""
        if isinstance(result, ModelReply) and result.finish != "refusal":
            if self._role == "worker" and result.finish == "length":
                return result.text + TRUNCATION_MARK
            return result.text
        failure = ModelFailure("refusal", "the model refused to answer") if isinstance(result, ModelReply) else result
        with self._lock:
            self.failures[failure.kind] += 1
        return failure
