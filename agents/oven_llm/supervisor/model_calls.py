"""Calls of one model within a run: logged as they end, metered, and not made twice where the log has the answer."""

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
from oven_llm.supervisor.log import RecordedCalls, Role, RunLogger, without_secrets
from oven_llm.supervisor.models import LMResponse, ModelHandler, RefusedError

_Result = TypeVar("_Result")


class CallThreads(Generic[_Result]):
    """At most `most` calls at a time, in the order of their submission. `concurrent.futures` has no daemon threads: at
    exit its executor waits for each call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[tuple[Future[_Result], Callable[[], _Result]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """For one thread at a time. The call sees the context variables of the caller."""
        context = contextvars.copy_context()
        future: Future[_Result] = Future()
        self._queue.put((future, lambda: context.run(call)))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._serve, name=f"model-call-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Threads end with the call that they are in."""
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


Prompt: TypeAlias = Sequence[Mapping[str, str]] | str
"""Messages; a worker's is the text of one."""
CUT_SHORT: Final = " [cut: the answer reached the worker's limit of tokens]"
"""After a worker's answer that was cut, lest a program takes it for a whole one. The supervisor's own speaks for
itself: a block without an end does not run."""
Answered: TypeAlias = str | ModelFailure | CapReachedError


class StoppedError(Exception):
    """The run was called off."""


@dataclass(frozen=True)
class _Call:
    step: int
    number: int
    """Of the role's calls in this run, from 1 on."""
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
        """`stopped` is done when the run is called off."""
        self._role, self._model, self._meter, self._logger = role, model, meter, logger
        self._account: Account = meter.supervisor if role == "supervisor" else meter.worker
        self._recorded, self._stopped = recorded, stopped
        self._threads: CallThreads[list[Answered]] = CallThreads(1 if model.batches else concurrency)
        self._number = 0
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()
        """By kind."""
        self.broken: OSError | ConfigError | None = None
        """What must end the run: its log cannot be written, or a cap not be kept."""
        for who, prompt, response in recorded.paid:
            if who == role:
                meter.enter(self._account, response, _bytes(prompt))
        meter.enter_failed(self._account, recorded.failed[role])

    def close(self) -> None:
        """Calls under way are left behind."""
        self._threads.close()

    def ask(self, step: int, prompts: Sequence[Prompt]) -> list[Answered]:
        """The answers, in the order of the prompts, or why there is none. Raises StoppedError."""
        found: dict[int, Answered] = {}
        left: list[_Call] = []
        for prompt in prompts:
            self._number += 1
            call = _Call(step, self._number, prompt)
            known = self._recorded.take(self._role, self._model.model, prompt)
            if known is None:
                left.append(call)
            else:
                found[call.number] = self._known(known)
        groups = [left] if self._model.batches else [[call] for call in left]
        futures = [self._threads.submit(partial(self._asked, group)) for group in groups if group]
        try:
            for future, group in zip(futures, groups, strict=False):
                answered = self._waited_for(future, len(group))
                found |= {call.number: one for call, one in zip(group, answered, strict=True)}
        finally:
            for future in futures:
                future.cancel()
        return [found[number] for number in sorted(found)]

    def _known(self, recorded: LMResponse | ModelFailure) -> Answered:
        if isinstance(recorded, ModelFailure):
            self.failures[recorded.kind] += 1
            return recorded
        return self._text(recorded)

    def _waited_for(self, future: Future[list[Answered]], many: int) -> list[Answered]:
        either: tuple[Future[Any], ...] = future, self._stopped
        concurrent.futures.wait(either, self._meter.left_s, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            try:
                return future.result()
            except (OSError, ConfigError) as error:
                self.broken = error
                return [ModelFailure("internal", "its log cannot be written")] * many
        if self._stopped.done():
            raise StoppedError
        most = self._meter.caps.seconds or 0.0
        late = f"the cap of {most:g} seconds is reached, and the model had not answered"
        return [CapReachedError("seconds", late)] * many

    def _asked(self, calls: Sequence[_Call]) -> list[Answered]:
        """In one of the threads: one call, or all of a model that batches them by itself."""
        try:
            self._meter.admit()
        except CapReachedError as reached:
            return [reached] * len(calls)
        asked = [call.messages for call in calls]
        found: Sequence[LMResponse | ModelFailure]
        try:
            found = self._model.chat_batch(asked) if self._model.batches else [self._model.chat(asked[0])]
        except ModelFailure as failure:
            found = [failure] * len(calls)
        except Exception as error:  # its text may hold a key
            found = [ModelFailure("internal", type(error).__name__)] * len(calls)
        return [self._entered(call, one) for call, one in zip(calls, found, strict=True)]

    def _entered(self, call: _Call, found: LMResponse | ModelFailure) -> Answered:
        """Logged and metered. Raises OSError."""
        at = self._role, call.step, call.number, self._model.model, call.prompt
        if isinstance(found, ModelFailure):
            with self._lock:
                self.failures[found.kind] += 1
            billed = found.response if isinstance(found, RefusedError) else None
            if billed is not None:
                self._meter.enter(self._account, billed, _bytes(call.prompt))
            elif found.kind != "budget":  # else no call was made
                self._meter.enter_failed(self._account)
            self._logger.failed(*at, found, billed)
            return found
        found = replace(found, text=without_secrets(found.text, self._model.secrets))
        self._meter.enter(self._account, found, _bytes(call.prompt))
        self._logger.called(*at, found)
        return self._text(found)

    def _text(self, response: LMResponse) -> str:
        return response.text + CUT_SHORT * (self._role == "worker" and response.finish == "length")


def _bytes(prompt: Prompt) -> int:
    written = prompt if isinstance(prompt, str) else json.dumps([dict(one) for one in prompt])
    return len(written.encode(errors="replace"))
