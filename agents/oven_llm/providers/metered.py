"""A provider behind a meter: no call is made that could go over a cap, and what each call cost is written down."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from oven_core.errors import ConfigError
from oven_llm.providers import sampling
from oven_llm.providers.conversation import Conversation, Draw
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.provider import Answer, EndpointProvider, Provider, Question
from oven_llm.providers.sampling import Samples
from oven_llm.providers.terms import AgreedTerms
from oven_llm.providers.usage import Ledger, Price, Usage, current, opened
from oven_runs.home.model_spend import ModelSpend, Refused, Spend
from oven_runs.settings.judge_providers import ModelEndpoint

log = logging.getLogger("oven.member")

Result = TypeVar("Result")
AGAIN_S: Final = 0.05
"""Seconds until it is looked again whether a call that has ended left room."""


class Meter:
    """Room for each call before it is made, and its cost afterwards.

    An attempt that was answered with an error, or never reached the endpoint, costs nothing. Any other one whose usage
    is not known counts at its greatest cost: a model that is slower than its deadline is billed as well.
    """

    def __init__(self, spend: ModelSpend, price: Price, account: str = "") -> None:
        """`account`: another one than the view's of the books."""
        self._spend, self._price, self._account = spend, price, account
        self._told = False

    async def run(
        self, most: Usage, call: Callable[[], Awaitable[Result]], usage_of: Callable[[Result], Usage | None]
    ) -> tuple[Result, Spend]:
        """The call's result, and what it and the attempts before it came to. `most`: one attempt's greatest usage.
        Raises ModelFailure `budget` where a cap leaves no room; where calls under way hold it, it waits for them."""
        held = await self._room(self._cost([], most, 1))
        attempts, known, answered, cost = Ledger(), list[Usage](), False, Spend()
        try:
            with opened(attempts):
                result = await call()
            answered = True
            known = [usage for usage in (usage_of(result),) if usage is not None]
        finally:
            unknown = max(attempts.billable, answered) - len(known)
            cost = self._cost(known, most, unknown)
            self._book(held, cost)
            if (outer := current()) is not None:
                # The answer's own usage is entered by whoever reads the answer.
                outer.absorb_attempts(attempts, [most] * (len(known) + unknown - answered))
        return result, cost

    def _cost(self, known: Sequence[Usage], most: Usage, unknown: int) -> Spend:
        usages = [*known, *[most] * unknown]
        usd = self._price(usages) if usages else 0.0
        return Spend(
            calls=len(usages),
            unanswered=unknown,
            unpriced=len(usages) if usd is None else 0,
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            usd=usd or 0.0,
        )

    async def _room(self, most: Spend) -> int | None:
        while True:
            try:
                found = self._spend.hold(most, self._account)
            except sqlite3.Error as error:
                self._unwritten(error)
                if self._spend.capped:
                    raise ModelFailure("budget", "what is spent cannot be written down, and it is capped") from None
                return None
            if not isinstance(found, Refused):
                return found
            if found.final:
                raise ModelFailure("budget", found.cap)
            if (outer := current()) is not None:
                outer.last = "budget"  # the reason, if the deadline ends the wait
            await asyncio.sleep(AGAIN_S)

    def _book(self, held: int | None, cost: Spend) -> None:
        if held is None:
            return
        try:
            self._spend.book(held, cost)
        except sqlite3.Error as error:
            self._unwritten(error)  # what was held stays so, and counts

    def _unwritten(self, error: sqlite3.Error) -> None:
        if not self._told:
            self._told = True
            log.error("what is spent cannot be written to %s: %s", self._spend.path, error)


class Metered:
    """What a `Provider` is, over another one."""

    def __init__(self, provider: Provider, meter: Meter) -> None:
        self._provider, self._meter = provider, meter

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def model(self) -> str:
        return self._provider.model

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """Raises ModelFailure `budget` where a cap leaves no room; where calls under way hold it, it waits for them."""
        most = greatest(question)
        answer, cost = await self._meter.run(
            most, lambda: self._provider.ask(question, timeout_s), lambda answer: answer.usage
        )
        return replace(answer, usage=answer.usage or most, cost_usd=None if cost.unpriced else cost.usd)

    async def close(self) -> None:
        await self._provider.close()


class MeteredEndpoint(Metered, Samples):
    """The same over an `EndpointProvider`, and one itself."""

    def __init__(self, provider: EndpointProvider, meter: Meter) -> None:
        super().__init__(provider, meter)
        self._endpoint = provider
        self.draws_together = provider.draws_together

    @property
    def asked(self) -> ModelEndpoint:
        return self._endpoint.asked

    @property
    def terms(self) -> AgreedTerms:
        return self._endpoint.terms

    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        """As the endpoint's, and as `ask`."""
        draw, cost = await self._meter.run(
            sampling.greatest(conversation, samples),
            lambda: self._endpoint.draw(conversation, samples, attempt_s),
            lambda draw: draw.usage,
        )
        return replace(draw, usd=None if cost.unpriced else cost.usd)


def greatest(question: Question) -> Usage:
    """The most that one attempt at this question can take: a token holds at least one byte of UTF-8."""
    texts = (question.system, question.user, json.dumps(question.schema))
    return Usage(sum(len(text.encode()) for text in texts) + sampling.AROUND_TOKENS, question.max_tokens)


def check_priced(who: str, model: str, price: Price, caps: str = "committee.budget") -> None:
    """Raises ConfigError where the price of `model`, which `who` asks, is not known: a cap in US dollars could not be
    kept. `caps`: the setting of the budget."""
    if price([Usage(1, 1)]) is None:
        raise ConfigError(
            f"the price of {model!r}, the model of {who}, is not known, so a cap in US dollars cannot be kept; cap "
            f"{caps}.tokens instead, or write the price into a file of providers (`price:`, US dollars per million "
            "tokens) and name that with committee.providers"
        )
