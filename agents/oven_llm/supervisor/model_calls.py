"""One model's calls within a run: logged as they end, metered, and not repeated if the log has the answer."""

from __future__ import annotations

import concurrent.futures
import contextvars
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

from oven_core.errors import ConfigError
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.caps import Account, CapReachedError, Meter
from oven_llm.supervisor.log import Prompt, RecordedCalls, Role, RunLogger, without_secrets
from oven_llm.supervisor.models import LMResponse, ModelHandler, RefusedError

_Result = TypeVar("_Result")

CUT_SHORT: Final = " [cut: the answer reached the worker's limit of tokens]"
"""Added to a worker's answer that was cut, so that no program mistakes it for a complete one. The supervisor's own cut
answers need no mark: a block without an end does not run."""
CallOutcome: TypeAlias = str | ModelFailure | CapReachedError


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


@dataclass(frozen=True)
class _Call:
    step: int
    number: int
    """Number among the role's calls in this run, from 1."""
    prompt: Prompt

    @property
    def messages(self) -> Sequence[Mapping[str, str]]:
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt


class ModelCalls:
    """All calls of one role."""

    def __init__(
        self,
        role: Role,
        model: ModelHandler,
        meter: Meter,
        logger: RunLogger,
        recorded: RecordedCalls,
        stopped: Future[None],
        concurrency: int = 1,
    ) -> None:
        """`stopped` is done when the run is cancelled."""
        self._role, self._model, self._meter, self._logger = role, model, meter, logger
        self._account: Account = meter.supervisor if role == "supervisor" else meter.worker
        self._recorded, self._stopped = recorded, stopped
        self._threads: CallThreads[list[CallOutcome]] = CallThreads(1 if model.batches else concurrency)
        self._number = 0
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()
        """Failed calls by kind."""
        self.fatal: OSError | ConfigError | None = None
        """An error that must end the run: the log cannot be written, or a cap cannot be kept."""
        for paid_role, prompt, response in recorded.paid:
            if paid_role == role:
                meter.add(self._account, response, _size(prompt))
        meter.add_failed(self._account, recorded.failed[role])

    def close(self) -> None:
        """Leave the calls in flight behind."""
        self._threads.close()

    def ask(self, step: int, prompts: Sequence[Prompt]) -> list[CallOutcome]:
        """Return the answers in the order of the prompts, or the reasons why there are none. Raises StoppedError."""
        outcomes: dict[int, CallOutcome] = {}
        unanswered: list[_Call] = []
        for prompt in prompts:
            self._number += 1
            call = _Call(step, self._number, prompt)
            recorded = self._recorded.take(self._role, self._model.model, prompt)
            if recorded is None:
                unanswered.append(call)
            else:
                outcomes[call.number] = self._outcome_of_record(recorded)
        groups = [unanswered] if self._model.batches else [[call] for call in unanswered]
        futures = [self._threads.submit(partial(self._call_model, group)) for group in groups if group]
        try:
            for future, group in zip(futures, groups, strict=False):
                results = self._wait_for(future, len(group))
                outcomes |= {call.number: result for call, result in zip(group, results, strict=True)}
        finally:
            for future in futures:
                future.cancel()
        return [outcomes[number] for number in sorted(outcomes)]

    def _outcome_of_record(self, recorded: LMResponse | ModelFailure) -> CallOutcome:
        if isinstance(recorded, ModelFailure):
            self.failures[recorded.kind] += 1
            return recorded
        return self._text(recorded)

    def _wait_for(self, future: Future[list[CallOutcome]], count: int) -> list[CallOutcome]:
        either: tuple[Future[Any], ...] = future, self._stopped
        concurrent.futures.wait(either, self._meter.remaining_s, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            try:
                return future.result()
            except (OSError, ConfigError) as error:
                self.fatal = error
                return [ModelFailure("internal", "its log cannot be written")] * count
        if self._stopped.done():
            raise StoppedError
        limit = self._meter.caps.seconds or 0.0
        return [
            CapReachedError("seconds", f"the cap of {limit:g} seconds is reached before the model's answer")
        ] * count

    def _call_model(self, calls: Sequence[_Call]) -> list[CallOutcome]:
        """Make one call, or all calls of a model that batches them. Runs in one of the threads."""
        try:
            self._meter.admit()
        except CapReachedError as reached:
            return [reached] * len(calls)
        messages = [call.messages for call in calls]
        results: Sequence[LMResponse | ModelFailure]
        try:
            results = self._model.chat_batch(messages) if self._model.batches else [self._model.chat(messages[0])]
        except ModelFailure as failure:
            results = [failure] * len(calls)
        except Exception as error:  # its text may contain a key
            results = [ModelFailure("internal", type(error).__name__)] * len(calls)
        return [self._record(call, result) for call, result in zip(calls, results, strict=True)]

    def _record(self, call: _Call, result: LMResponse | ModelFailure) -> CallOutcome:
        """Log and meter a call. Raises OSError."""
        entry = self._role, call.step, call.number, self._model.model, call.prompt
        if isinstance(result, ModelFailure):
            with self._lock:
                self.failures[result.kind] += 1
            billed = result.response if isinstance(result, RefusedError) else None
            if billed is not None:
                self._meter.add(self._account, billed, _size(call.prompt))
            elif result.kind != "budget":  # for "budget" no call was made
                self._meter.add_failed(self._account)
            self._logger.failed(*entry, result, billed)
            return result
        result = replace(result, text=without_secrets(result.text, self._model.secrets))
        self._meter.add(self._account, result, _size(call.prompt))
        self._logger.called(*entry, result)
        return self._text(result)

    def _text(self, response: LMResponse) -> str:
        return response.text + CUT_SHORT * (self._role == "worker" and response.finish == "length")


def _size(prompt: Prompt) -> int:
    text = prompt if isinstance(prompt, str) else json.dumps([dict(message) for message in prompt])
    return len(text.encode(errors="replace"))
