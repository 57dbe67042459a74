"""Calls a language model for an agent, with a deadline and a limited number of calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from oven_agents.runtime.companion import RunContext
from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.language_models.question_slot import Question, QuestionSlot, Result
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import FailureKind, ModelFailure, format_counts
from oven_llm.providers.genai_telemetry import ModelCall, trace
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, record_calls_in
from oven_runs.home.model_spend import SPEND_FILE, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import AuthorSettings, TunerSettings


class AgentModel:
    """The language model of one agent. It is connected when the agent asks the first question."""

    def __init__(self, run_context: RunContext, settings: TunerSettings | AuthorSettings) -> None:
        """Prepare the model in `settings.llm`, which must not be None. Raises ConfigError if it cannot be used."""
        assert settings.llm is not None
        self.failures: Counter[str] = Counter()
        """Number of questions without a usable reply, by kind of failure."""
        name, setting = run_context.name, f"{run_context.name}.llm"
        self._name, self._deadline_s = name, settings.deadline_s
        self._endpoint = endpoint_of(name, settings.llm, catalogue(run_context.providers_file), setting)
        self._key = key_of(name, self._endpoint, setting=setting)
        cap = Cap(BudgetSettings(calls=settings.calls), name, name)
        self._budget = Budget([cap], run_context.folder / SPEND_FILE, name)
        self._model: RemoteModel | None = None

    @property
    def model_name(self) -> str:
        return self._endpoint.model

    @property
    def status(self) -> str:
        """The number of calls, their cost and the failures so far, as text for a notice."""
        spent = self._budget.spent
        cost = f", {spent.usd:.4f} USD" if spent.usd else ""
        return f"{spent.calls} calls{cost}; abstained: {format_counts(self.failures)}"

    async def ask(self, question: Conversation, parse: Callable[[str], Result]) -> Result:
        """Ask the model and return its reply, parsed by `parse`. Count and raise any ModelFailure."""
        tally, started_ns = CallTally(), time.time_ns()
        reply: ModelReply | None = None
        failure_kind: FailureKind | None = None
        try:
            with record_calls_in(tally):
                reply = await self._request_reply(question, tally)
            reply.require_complete()
            return parse(reply.text)
        except ModelFailure as failure:
            failure_kind = failure.kind
            self.failures[failure.kind] += 1
            raise
        finally:
            if self._model is not None and failure_kind != "budget":  # a call that the budget refuses is never sent
                trace(ModelCall(self._model, reply, failure_kind, started_ns))

    async def serve(
        self, slot: QuestionSlot[Question, Result], answer: Callable[[Question], Awaitable[Result]]
    ) -> None:
        """Answer the questions of `slot` until cancelled, then close the connection."""
        try:
            await slot.serve(answer)
        finally:
            if self._model is not None:
                await self._model.close()
            self._budget.close()

    async def _request_reply(self, question: Conversation, tally: CallTally) -> ModelReply:
        try:
            async with asyncio.timeout(self._deadline_s):
                if self._model is None:
                    # Importing the SDK takes 1 to 2 s, and other agents share this process.
                    connect = partial(providers.connect, self._name, self._endpoint, self._key)
                    self._model = await asyncio.to_thread(connect, budget=self._budget, account=self._name)
                return await self._model.ask(question, self._deadline_s)
        except TimeoutError:
            raise ModelFailure(tally.last_failure or "timeout", f"no reply within {self._deadline_s:g} s") from None
        except ConfigError as error:  # the SDK is not installed
            raise ModelFailure("internal", str(error)) from None
