"""Calls a remote language model: negotiates features, applies timeouts and charges the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final, Protocol

from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.optional_features import AgreedTerms, Terms
from oven_llm.providers.usage import CallTally, cost_usd, current_tally, record_calls_in
from oven_runs.settings.judge_providers import ModelEndpoint

ATTEMPT_SHARE: Final = 2 / 3
"""Share of a request's timeout for one HTTP attempt, so that a third remains for a retry after a lost reply."""
PLAIN_TERMS: Final = Terms(schema="none", top_logprobs=0)


class ModelApi(Protocol):
    """One provider's API behind its official SDK."""

    def complete(self, conversation: Conversation, terms: Terms, attempt_s: float) -> Awaitable[ModelReply]:
        """Send one request with `attempt_s` per HTTP attempt. The reply has no cost yet. Raises ModelFailure."""
        ...

    async def close(self) -> None: ...


class RemoteModel:
    """A `LanguageModel` behind an API. If there is a budget, calls are charged to `account`."""

    def __init__(
        self,
        api: ModelApi,
        endpoint: ModelEndpoint,
        terms: AgreedTerms,
        budget: Budget | None = None,
        account: str = "",
    ) -> None:
        """Raises ConfigError if the budget is capped in US dollars and the model's price is unknown."""
        self.endpoint, self.terms = endpoint, terms
        self.name, self.model = endpoint.telemetry_name, endpoint.model
        self._api, self._budget, self._account = api, budget, account
        if budget is not None:
            budget.check_priced(account, endpoint)

    def with_budget(self, budget: Budget, account: str) -> RemoteModel:
        """Return the same model, charging its calls to an account. Raises the same error as the constructor."""
        return RemoteModel(self._api, self.endpoint, self.terms, budget, account)

    async def ask(self, conversation: Conversation, timeout_s: float) -> ModelReply:
        """See `LanguageModel.ask`. Each billable attempt is charged, at its maximum usage if none was reported."""
        max_usage = conversation.max_usage()
        caller_tally, tally = current_tally(), CallTally()
        reservation: int | None = None
        reply: ModelReply | None = None
        try:
            with record_calls_in(tally):
                async with asyncio.timeout(timeout_s):
                    if self._budget is not None:
                        reservation = await self._budget.reserve(self._account, max_usage, self.endpoint)
                    reply = await self._complete(conversation, ATTEMPT_SHARE * timeout_s)
        except TimeoutError:
            raise ModelFailure(tally.last_failure or "timeout", f"no reply within {timeout_s:g} s") from None
        finally:
            reported_usages = [reply.usage] if reply is not None and reply.usage is not None else []
            min_count = 0 if reply is None else 1  # a reply is billed even if no HTTP attempt was recorded
            billed_count = max(tally.billable_count, min_count)
            unreported_count = billed_count - len(reported_usages)
            tally.usages = [*reported_usages, *[max_usage] * unreported_count]
            if self._budget is not None and reservation is not None:
                self._budget.book(reservation, tally.usages, unreported_count, self.endpoint)
            cost = cost_usd(self.endpoint, tally.usages)
            if caller_tally is not None:
                caller_tally.absorb(tally)
        return replace(reply, cost_usd=cost)

    async def close(self) -> None:
        await self._api.close()

    async def _complete(self, conversation: Conversation, attempt_s: float) -> ModelReply:
        if conversation.schema is None and not self.terms.requested.top_logprobs:
            return await self._api.complete(conversation, PLAIN_TERMS, attempt_s)
        return await self.terms.negotiate(lambda terms: self._api.complete(conversation, terms, attempt_s))
