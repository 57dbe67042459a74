"""One model that is asked now and then: within a deadline, a limited number of times, every failure counted by kind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from oven_core.errors import ConfigError
from oven_llm import genai_telemetry as genai
from oven_llm import providers
from oven_llm.language_models.call_limit import CallLimit
from oven_llm.providers.call_records import call_record
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.provider import Answer, Provider, Question
from oven_llm.providers.usage import Ledger, cost_usd, opened
from oven_runs.settings.judge_providers import catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import ModelSettings

log = logging.getLogger("oven.agent")

ATTEMPT_SHARE = 2 / 3
"""Of the deadline for one HTTP attempt: an answer that got lost leaves a third for another."""

Read = TypeVar("Read")


class Asker:
    """Raises ConfigError when it is made for a provider that there is not, or without the model's key."""

    def __init__(self, name: str, llm: ModelSettings, providers_file: str, limit: CallLimit, deadline_s: float) -> None:
        """`llm` is the setting `NAME.llm`; `providers_file` the user's overlay of the catalogue, or nothing."""
        self.limit = limit
        self.failed: Counter[str] = Counter()
        """Questions without an answer that could be used, by kind."""
        self._name, self._deadline_s = name, deadline_s
        self._asked = endpoint_of(name, llm, catalogue(providers_file), f"{name}.llm")
        self._key = key_of(name, self._asked, at=f"{name}.llm")
        self._provider: Provider | None = None

    @property
    def model(self) -> str:
        return self._asked.model

    async def ask(self, question: Question, read: Callable[[str], Read]) -> Read:
        """What `read` makes of the answer. Raises ModelFailure, with the failure counted."""
        ledger = Ledger()
        started, answer, error = time.time_ns(), None, None
        try:
            answer = await self._answer(question, ledger)
            if answer.outcome != "complete":
                raise ModelFailure(answer.outcome, f"the answer ended with {answer.finish_reason}")
            return read(answer.text)
        except ModelFailure as failure:
            error = failure.kind
            self.failed[failure.kind] += 1
            raise
        finally:
            self._book(answer, error, ledger, started)

    async def close(self) -> None:
        if self._provider is not None:
            await self._provider.close()

    async def _answer(self, question: Question, ledger: Ledger) -> Answer:
        try:
            async with asyncio.timeout(self._deadline_s):
                if self._provider is None:  # a second or two of importing, which must not hold up other agents' votes
                    connect = partial(providers.connect, self._name, self._asked, self._key)
                    self._provider = await asyncio.to_thread(connect)
                await asyncio.to_thread(self.limit.reserve)
                with opened(ledger):
                    return await self._provider.ask(question, ATTEMPT_SHARE * self._deadline_s)
        except TimeoutError:
            raise ModelFailure(ledger.last or "timeout", f"no answer within {self._deadline_s:g} s") from None
        except ConfigError as error:  # the SDK is not installed
            raise ModelFailure("internal", str(error)) from None
        except OSError as error:
            raise ModelFailure(
                "internal", f"the call cannot be counted ({error.strerror}), so it is not made"
            ) from None

    def _book(self, answer: Answer | None, error: Kind | None, ledger: Ledger, started_ns: int) -> None:
        if self._provider is None:
            return
        price = cost_usd(self._asked, [answer.usage if answer is not None else None])
        if price:
            try:
                self.limit.book(price)
            except OSError as problem:
                log.warning("%s: what a call cost cannot be kept: %s", self._name, problem.strerror)
        genai.trace(
            call_record(
                self._provider, answer, error, resends=ledger.attempts - 1, started_ns=started_ns, cost_usd=price
            )
        )
