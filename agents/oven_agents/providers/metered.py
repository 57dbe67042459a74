"""A provider behind a meter: no call is made that could go over a cap, and what each call cost is written down."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from oven_agents.providers.failures import ModelFailure
from oven_agents.providers.provider import Answer, EndpointProvider, Provider, Question
from oven_agents.providers.terms import AgreedTerms
from oven_agents.providers.usage import Ledger, Usage, current, opened
from oven_controller.errors import ConfigError
from oven_controller.runs.model_spend import ModelSpend, Refused, Spend
from oven_controller.settings.judge_providers import ModelEndpoint

log = logging.getLogger("oven.member")

Price = Callable[[Sequence[Usage | None]], float | None]
AROUND_TOKENS: Final = 512
"""Tokens that an API may put around the texts of a question: roles, separators, its words for the schema."""
AGAIN_S: Final = 0.05
"""Seconds until it is looked again whether a call that has ended left room."""


class Metered:
    """What a `Provider` is, over another one.

    An attempt that was answered with an error, or never reached the endpoint, costs nothing. Any other one whose usage
    is not known counts at its greatest cost: a judge that is slower than its deadline is billed as well.
    """

    def __init__(self, provider: Provider, spend: ModelSpend, price: Price) -> None:
        self._provider, self._spend, self._price = provider, spend, price
        self._told = False

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def model(self) -> str:
        return self._provider.model

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """Raises ModelFailure `budget` where a cap leaves no room; where calls under way hold it, it waits for them."""
        most = greatest(question)
        held = await self._room(self._cost([], most, 1))
        attempts, answer = Ledger(), None
        try:
            with opened(attempts):
                answer = await self._provider.ask(question, timeout_s)
        finally:
            known = [answer.usage] if answer is not None and answer.usage is not None else []
            answered = answer is not None
            unknown = max(attempts.billable, answered) - len(known)
            cost = self._cost(known, most, unknown)
            self._book(held, cost)
            # The answer's own usage is entered by whoever reads the answer.
            self._merge(attempts, [most] * (len(known) + unknown - answered))
        return replace(answer, usage=answer.usage or most, cost_usd=None if cost.unpriced else cost.usd)

    async def close(self) -> None:
        await self._provider.close()

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
                found = self._spend.hold(most)
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

    @staticmethod
    def _merge(attempts: Ledger, unknown: Sequence[Usage]) -> None:
        """Into the ledger of the request."""
        outer = current()
        if outer is None:
            return
        outer.attempts += attempts.attempts
        outer.billable += attempts.billable
        outer.faults.update(attempts.faults)
        outer.last = attempts.last
        outer.usages += unknown

    def _unwritten(self, error: sqlite3.Error) -> None:
        if not self._told:
            self._told = True
            log.error("what is spent cannot be written to %s: %s", self._spend.path, error)


class MeteredEndpoint(Metered):
    """The same over an `EndpointProvider`, and one itself."""

    def __init__(self, provider: EndpointProvider, spend: ModelSpend, price: Price) -> None:
        super().__init__(provider, spend, price)
        self._endpoint = provider

    @property
    def asked(self) -> ModelEndpoint:
        return self._endpoint.asked

    @property
    def terms(self) -> AgreedTerms:
        return self._endpoint.terms


def greatest(question: Question) -> Usage:
    """The most that one attempt at this question can take: a token holds at least one byte of UTF-8."""
    texts = (question.system, question.user, json.dumps(question.schema))
    return Usage(sum(len(text.encode()) for text in texts) + AROUND_TOKENS, question.max_tokens)


def check_priced(name: str, model: str, price: Price) -> None:
    """Raises ConfigError where the price of `model` is not known: a cap in US dollars could not be kept."""
    if price([Usage(1, 1)]) is None:
        raise ConfigError(
            f"the price of {model!r}, the model of committee member {name!r}, is not known, so a cap in US dollars "
            "cannot be kept; cap committee.budget.tokens instead, or write the price into a file of providers "
            "(`price:`, US dollars per million tokens) and name that with committee.providers"
        )
