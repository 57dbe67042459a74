"""Makes one model's calls within a run. It logs and counts them, and reuses answers from the log."""

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
from oven_llm.supervisor.log import Prompt, RecordedCalls, Role, RunLogger, without_secrets
from oven_llm.supervisor.models import ModelHandler

_Result = TypeVar("_Result")

CUT_SHORT: Final = " [cut: the answer reached the worker's limit of tokens]"
"""Added to a worker's answer that was cut, so that no program mistakes it for a complete one. The supervisor's own cut
answers need no mark: a block without an end does not run."""
CallOutcome: TypeAlias = str | ModelFailure


class CallThreads(Generic[_Result]):
    """Daemon threads for calls that may hang: `limit` calls at a time, in the order of submission. The executor of
    `concurrent.futures` waits for each call at exit; these threads do not keep the process alive."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: SimpleQueue[tuple[Future[_Result], Callable[[], _Result]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Queue a call, which sees the caller's context variables. Not thread-safe."""
        context = contextvars.copy_context()
        future: Future[_Result] = Future()
        self._queue.put((future, lambda: context.run(call)))
        if not self._idle.acquire(blocking=False) and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._serve, name=f"model-call-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """End each thread after its current call."""
        for _ in range(self._started):
            self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            self._idle.release()


class StoppedError(Exception):
    """The run was cancelled."""


class TimeLimit:
    """Tracks the seconds since the run began and their limit; None sets no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def remaining(self) -> float | None:
        """Seconds until the limit; None without one."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed)

    def failure(self) -> ModelFailure:
        """Return the failure of a call that the limit ended or prevented."""
        return ModelFailure("timeout", f"the run's limit of {self.seconds or 0:g} seconds is reached")


@dataclass(frozen=True)
class _Call:
    step: int
    number: int
    """Number among the role's calls in this run, from 1."""
    prompt: Prompt

    @property
    def messages(self) -> Messages:
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt


class ModelCalls:
    """Makes all model calls of one role."""

    def __init__(
        self,
        role: Role,
        model: ModelHandler,
        limit: TimeLimit,
        logger: RunLogger,
        recorded: RecordedCalls,
        stopped: Future[None],
        concurrency: int = 1,
    ) -> None:
        """`stopped` is done when the run is cancelled."""
        self._role, self._model, self._limit, self._logger = role, model, limit, logger
        self._recorded, self._stopped = recorded, stopped
        self._threads: CallThreads[CallOutcome] = CallThreads(concurrency)
        self._number = 0
        self._lock = threading.Lock()
        self.replies = [reply for paid_role, reply in recorded.paid if paid_role == role]
        """All replies, refusals and those of an earlier part of the run included."""
        self.failures: Counter[str] = Counter()
        """Failed calls by kind."""
        self.fatal: OSError | None = None
        """An error that must end the run: the log cannot be written."""

    @property
    def usage(self) -> Usage:
        """Tokens of the calls that reported them."""
        return sum((reply.usage for reply in self.replies if reply.usage is not None), Usage(0, 0))

    def close(self) -> None:
        """Abandon the active calls."""
        self._threads.close()

    def ask(self, step: int, prompts: Sequence[Prompt]) -> list[CallOutcome]:
        """Return one answer per prompt, or the reason for a missing answer. Raises StoppedError."""
        pending: list[CallOutcome | Future[CallOutcome]] = []
        for prompt in prompts:
            self._number += 1
            recorded = self._recorded.take(self._role, self._model.model, prompt)
            if recorded is None:
                pending.append(self._threads.submit(partial(self._call_model, _Call(step, self._number, prompt))))
            else:
                pending.append(self._outcome(recorded))
        try:
            return [self._wait_for(item) if isinstance(item, Future) else item for item in pending]
        finally:
            for item in pending:
                if isinstance(item, Future):
                    item.cancel()

    def _wait_for(self, future: Future[CallOutcome]) -> CallOutcome:
        either: tuple[Future[Any], ...] = future, self._stopped
        concurrent.futures.wait(either, self._limit.remaining, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            try:
                return future.result()
            except OSError as error:
                self.fatal = error
                return ModelFailure("internal", "its log cannot be written")
        if self._stopped.done():
            raise StoppedError
        return self._limit.failure()

    def _call_model(self, call: _Call) -> CallOutcome:
        """Make one call, log it, and count it. Runs in one of the threads. Raises OSError."""
        if self._limit.remaining == 0:
            return self._limit.failure()
        began = time.monotonic()
        result: ModelReply | ModelFailure
        try:
            reply = self._model.chat(call.messages)
            result = replace(reply, text=without_secrets(reply.text, self._model.secrets))
            with self._lock:
                self.replies.append(result)
        except ModelFailure as failure:
            result = failure
        except Exception as error:  # its text may contain a key
            result = ModelFailure("internal", type(error).__name__)
        elapsed = time.monotonic() - began
        self._logger.called(self._role, call.step, call.number, self._model.model, call.prompt, result, elapsed)
        return self._outcome(result)

    def _outcome(self, result: ModelReply | ModelFailure) -> CallOutcome:
        if isinstance(result, ModelReply) and result.finish != "refusal":
            return result.text + CUT_SHORT * (self._role == "worker" and result.finish == "length")
        failure = ModelFailure("refusal", "the model refused to answer") if isinstance(result, ModelReply) else result
        with self._lock:
            self.failures[failure.kind] += 1
        return failure
