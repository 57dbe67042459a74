"""A language model at an address: terms, samples, timeouts and the budget, over the requests of one API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Completion, Conversation, ModelReply, SamplesMissing
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.terms import AgreedTerms, Terms
from oven_llm.providers.usage import CallTally, Usage, cost_usd, current_tally, tallied
from oven_runs.settings.judge_providers import ModelEndpoint

ATTEMPT_SHARE: Final = 2 / 3
"""Share of a request's time for one HTTP attempt: after a lost reply, a third is left for another attempt."""
PLAIN: Final = Terms("none", 0)


class ModelApi(Protocol):
    """One provider's API behind its official SDK."""

    returns_several: bool
    """Whether one request can return several samples."""

    def complete(
        self, conversation: Conversation, samples: int, terms: Terms, attempt_s: float
    ) -> Awaitable[Completion]:
        """Send one request; `attempt_s` bounds each HTTP attempt. It may return fewer samples. Raises ModelFailure."""
        ...

    async def close(self) -> None: ...


class RemoteModel:
    """A `LanguageModel` that an API serves. If there is a budget, calls are charged to `account`."""

    def __init__(
        self,
        api: ModelApi,
        settings: ModelEndpoint,
        terms: AgreedTerms,
        budget: Budget | None = None,
        account: str = "",
    ) -> None:
        """Raises ConfigError if the budget caps US dollars and the model's price is unknown."""
        self.settings, self.terms = settings, terms
        self.name, self.model = settings.known_as, settings.model
        self._api, self._budget, self._account = api, budget, account
        self._returns_several = api.returns_several
        if budget is not None:
            budget.check_priced(account, settings)

    def within(self, budget: Budget, account: str) -> RemoteModel:
        """The same model, with its calls charged to an account. Raises ConfigError as the class does."""
        return RemoteModel(self._api, self.settings, self.terms, budget, account)

    async def ask(self, conversation: Conversation, timeout_s: float, samples: int = 1) -> list[ModelReply]:
        """Return as many replies as `samples`; see `LanguageModel.ask`.

        If the API returns one sample per request, the first request is sent alone to warm the provider's cache. The
        others follow at once.
        """
        if samples < 1:
            raise ValueError(f"samples is {samples}; give 1 or more")
        if samples == 1:
            return await self._request(conversation, 1, timeout_s)
        conversation = replace(conversation, cached=True)
        replies: list[ModelReply] = []
        try:
            while missing := samples - len(replies):
                if missing > 1 and self._returns_several:
                    replies += (await self._several(conversation, missing, timeout_s))[:missing]
                elif not replies:
                    replies += await self._request(conversation, 1, timeout_s)
                else:
                    await self._separately(conversation, missing, timeout_s, replies)
        except ModelFailure as failure:
            raise SamplesMissing(failure, replies) from None
        return replies

    async def close(self) -> None:
        await self._api.close()

    async def _several(self, conversation: Conversation, samples: int, timeout_s: float) -> list[ModelReply]:
        """At least one reply. Some APIs refuse a request for several samples, others return a single one."""
        try:
            replies = await self._request(conversation, samples, timeout_s)
        except ModelFailure as failure:
            if failure.kind != "bad_request":
                raise
            replies = await self._request(conversation, 1, timeout_s)
        if len(replies) < samples:
            self._returns_several = False
        return replies

    async def _separately(
        self, conversation: Conversation, samples: int, timeout_s: float, replies: list[ModelReply]
    ) -> None:
        """Append one reply for each of `samples` requests. Raises the first failure after all have ended."""
        requests = (self._request(conversation, 1, timeout_s) for _ in range(samples))
        failures: list[BaseException] = []
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                replies += outcome
        if failures:
            raise failures[0]

    async def _request(self, conversation: Conversation, samples: int, timeout_s: float) -> list[ModelReply]:
        """Send one request. Every attempt that may have been billed counts, at its greatest usage if the endpoint did
        not report any."""
        most = conversation.greatest_usage(samples)
        outer, tally = current_tally(), CallTally()
        hold: int | None = None
        completion: Completion | None = None
        try:
            with tallied(tally):
                async with asyncio.timeout(timeout_s):
                    if self._budget is not None:
                        hold = await self._budget.hold(self._account, most, self.settings)
                    completion = await self._complete(conversation, samples, ATTEMPT_SHARE * timeout_s)
        except TimeoutError:
            raise ModelFailure(tally.last_fault or "timeout", f"no answer within {timeout_s:g} s") from None
        finally:
            reported = [completion.usage] if completion is not None and completion.usage is not None else []
            unknown = max(tally.billable, completion is not None) - len(reported)
            tally.usages = [*reported, *[most] * unknown]
            if self._budget is not None and hold is not None:
                self._budget.book(hold, tally.usages, unknown, self.settings)
            cost = cost_usd(self.settings, tally.usages)
            if outer is not None:
                outer.absorb(tally)
        return _replies(completion, completion.usage or most, cost)

    async def _complete(self, conversation: Conversation, samples: int, attempt_s: float) -> Completion:
        if conversation.schema is None and not self.terms.requested.top_logprobs:
            return await self._api.complete(conversation, samples, PLAIN, attempt_s)
        return await self.terms.negotiate(partial(self._attempt, conversation, samples, attempt_s))

    def _attempt(
        self, conversation: Conversation, samples: int, attempt_s: float, terms: Terms
    ) -> Awaitable[Completion]:
        return self._api.complete(conversation, samples, terms, attempt_s)


def _replies(completion: Completion, usage: Usage, cost: float | None) -> list[ModelReply]:
    count = len(completion.samples)
    return [
        ModelReply(
            **vars(sample),
            model=completion.model,
            usage=share,
            reported=completion.usage is not None,
            cost_usd=None if cost is None else cost / count,
        )
        for sample, share in zip(completion.samples, usage.shares(count), strict=True)
    ]
