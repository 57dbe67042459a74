"""Calls a language model for an agent, with a deadline and a limited number of calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from oven_agents.runtime.companion import Surroundings
from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.language_models.question_desk import Desk, Question, Result, counted
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.genai_telemetry import ModelCall, trace
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, tallied
from oven_runs.home.model_spend import NAME, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import AuthorSettings, TunerSettings


class Asker:
    """The model of one agent."""

    def __init__(self, around: Surroundings, settings: TunerSettings | AuthorSettings) -> None:
        """`settings.llm` must name a model. Raises ConfigError for an unknown provider, a missing key and a record of
        spending that cannot be read."""
        assert settings.llm is not None
        self.failures: Counter[str] = Counter()
        """Questions without a usable reply, by kind."""
        self._name, self._deadline_s = around.name, settings.deadline_s
        where = f"{around.name}.llm"
        self._model = endpoint_of(around.name, settings.llm, catalogue(around.providers_file), where)
        self._key = key_of(around.name, self._model, setting=where)
        cap = Cap(BudgetSettings(calls=settings.calls), around.name, around.name)
        self._budget = Budget([cap], around.folder / NAME, around.name)
        self._endpoint: RemoteModel | None = None

    @property
    def model(self) -> str:
        return self._model.model

    @property
    def status(self) -> str:
        """Return the money spent and the number of failures, for a notice."""
        spent = self._budget.spent
        cost = f", {spent.usd:.4f} USD" if spent.usd else ""
        return f"{spent.calls} calls{cost}; abstained: {counted(self.failures)}"

    async def ask(self, question: Conversation, read: Callable[[str], Result]) -> Result:
        """Return what `read` makes of the reply. Raises ModelFailure, and counts it."""
        tally, started = CallTally(), time.time_ns()
        reply: ModelReply | None = None
        error: Kind | None = None
        try:
            with tallied(tally):
                reply = await self._reply(question, tally)
            reply.require_complete()
            return read(reply.text)
        except ModelFailure as failure:
            error = failure.kind
            self.failures[failure.kind] += 1
            raise
        finally:
            if self._endpoint is not None and error != "budget":  # otherwise no call was made
                trace(ModelCall(self._endpoint, reply, error, started))

    async def serve(self, desk: Desk[Question, Result], answer: Callable[[Question], Awaitable[Result]]) -> None:
        """Answer the desk's questions until cancelled."""
        try:
            await desk.serve(answer)
        finally:
            if self._endpoint is not None:
                await self._endpoint.close()
            self._budget.close()

    async def _reply(self, question: Conversation, tally: CallTally) -> ModelReply:
        try:
            async with asyncio.timeout(self._deadline_s):
                if self._endpoint is None:  # importing takes a second or two, and other agents share this process
                    connect = partial(providers.connect, self._name, self._model, self._key)
                    self._endpoint = await asyncio.to_thread(connect, budget=self._budget, account=self._name)
                return await self._endpoint.ask(question, self._deadline_s)
        except TimeoutError:
            raise ModelFailure(tally.last_fault or "timeout", f"no answer within {self._deadline_s:g} s") from None
        except ConfigError as error:  # the SDK is not installed
            raise ModelFailure("internal", str(error)) from None
