"""Calls of one model within a run: logged as they end, metered, and not made twice where the log has the answer."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

from oven_agents.providers.failures import ModelFailure
from oven_agents.supervisor.call_threads import CallThreads
from oven_agents.supervisor.caps import Account, CapReachedError, Meter
from oven_agents.supervisor.log import REMOVED, Role, RunLogger
from oven_agents.supervisor.models import LMResponse, ModelHandler
from oven_agents.supervisor.recorded_calls import RecordedCalls
from oven_controller.errors import ConfigError

Prompt: TypeAlias = Sequence[Mapping[str, str]] | str
"""Messages; a worker's is the text of one."""
CUT_SHORT: Final = " [cut: the answer reached the worker's limit of tokens]"
"""After a worker's answer that was cut, lest a program takes it for a whole one. The supervisor's own speaks for
itself: a block without an end does not run."""
Answered: TypeAlias = str | ModelFailure | CapReachedError


class StoppedError(Exception):
    """The run was called off."""


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
        self._threads: CallThreads[str] = CallThreads(concurrency)
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()
        """By kind."""
        self.broken: OSError | ConfigError | None = None
        """What must end the run: its log cannot be written, or a cap not be kept."""
        for who, prompt, response in recorded.paid:
            if who == role:
                meter.enter(self._account, response, _bytes(prompt))

    def close(self) -> None:
        """Calls under way are left behind."""
        self._threads.close()

    def ask(self, step: int, prompts: Sequence[Prompt]) -> list[Answered]:
        """The answers, in the order of the prompts, or why there is none. Raises StoppedError."""
        futures = [self._threads.submit(partial(self._one, step, prompt)) for prompt in prompts]
        try:
            return [self._answered(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _answered(self, future: Future[str]) -> Answered:
        either: tuple[Future[Any], ...] = future, self._stopped
        concurrent.futures.wait(either, self._meter.left_s, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            try:
                return future.result()
            except (ModelFailure, CapReachedError) as failure:
                return failure
            except (OSError, ConfigError) as error:
                self.broken = error
                return ModelFailure("internal", "its log cannot be written")
        if self._stopped.done():
            raise StoppedError
        most = self._meter.caps.seconds or 0.0
        return CapReachedError("seconds", f"the cap of {most:g} seconds is reached, and the model had not answered")

    def _one(self, step: int, prompt: Prompt) -> str:
        """In one of the threads."""
        name = self._model.model
        if (known := self._recorded.take(self._role, name, prompt)) is not None:
            return self._text(known)
        self._meter.admit()
        try:
            response = self._response(prompt)
        except ModelFailure as failure:
            with self._lock:
                self.failures[failure.kind] += 1
            self._logger.failed(self._role, step, name, prompt, failure)
            raise
        self._meter.enter(self._account, response, _bytes(prompt))
        self._logger.called(self._role, step, name, prompt, response)
        return self._text(response)

    def _text(self, response: LMResponse) -> str:
        return response.text + CUT_SHORT * (self._role == "worker" and response.finish == "length")

    def _response(self, prompt: Prompt) -> LMResponse:
        """Raises ModelFailure, also for whatever else a handler raises: its text may hold a key."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            found = self._model.chat(messages)
        except ModelFailure:
            raise
        except Exception as error:
            raise ModelFailure("internal", type(error).__name__) from error
        text = found.text
        for secret in self._model.secrets:
            text = text.replace(secret, REMOVED) if secret else text
        if text == found.text:
            return found
        return LMResponse(text, found.usage, found.elapsed, found.model, found.usd, found.finish)


def _bytes(prompt: Prompt) -> int:
    return len(
        (prompt if isinstance(prompt, str) else json.dumps([dict(one) for one in prompt])).encode(errors="replace")
    )
