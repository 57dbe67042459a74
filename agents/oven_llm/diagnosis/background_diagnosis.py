"""The background task of the agent `supervisor`, which asks a model to diagnose the log without delaying votes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import Any

from oven_agents.runtime.companion import RunContext
from oven_agents.runtime.kg_client import answer_requests_by_service
from oven_core.errors import BusError, ConfigError, OvenError
from oven_core.protocol.events import Event
from oven_llm.diagnosis.diagnosis_store import DiagnosisRequest, DiagnosisStore
from oven_llm.diagnosis.graph_diagnosis import ask_graph
from oven_llm.diagnosis.log_context import LogContext, read_context, shown_settings
from oven_llm.diagnosis.model_answer import ProposedChange
from oven_llm.diagnosis.model_diagnosis import DiagnosisResult, diagnose
from oven_llm.language_models.question_slot import QuestionSlot
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure, format_counts
from oven_llm.supervisor.model_handlers import ModelHandler, ProviderHandler
from oven_runs.home.model_spend import SPEND_FILE, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")


def connect_models(run_context: RunContext, settings: SupervisorSettings) -> tuple[Budget, list[ModelHandler]]:
    """Connect the supervisor's model, and the worker's model if one is set, with a shared budget. Raises ConfigError if
    a provider, API key or SDK is missing, or if the budget is capped in US dollars and a price is unknown."""
    cap = Cap(BudgetSettings(usd=settings.usd, tokens=settings.tokens), "supervisor", run_context.name)
    budget = Budget([cap], run_context.folder / SPEND_FILE, run_context.name)
    handlers: list[ModelHandler] = [
        ProviderHandler.from_settings(
            model,
            run_context.providers_file,
            f"supervisor.{role}",
            budget=budget,
            account=f"{run_context.name}/{role}",
            timeout_s=settings.seconds,
        )
        for role, model in (("model", settings.model), ("worker", settings.worker))
        if model is not None
    ]
    return budget, handlers


class DiagnosisCompanion:
    """Answers diagnosis requests one at a time. Raises ConfigError if the model cannot be used."""

    def __init__(
        self,
        run_context: RunContext,
        settings: SupervisorSettings,
        slot: QuestionSlot[DiagnosisRequest, DiagnosisResult],
    ) -> None:
        self.failures: Counter[str] = Counter()
        """Number of failed diagnoses by kind."""
        self._run_context, self._settings, self._slot = run_context, settings, slot
        self._store = DiagnosisStore(run_context.folder)
        self._count = self._store.count
        self._budget, self._handlers = connect_models(run_context, settings)
        self._events: list[Event] = []
        self._unwritten_uses: deque[tuple[int, int, ProposedChange | None]] = deque()  # arguments of `record_use`
        self._answer_used = asyncio.Event()

    @property
    def next_number(self) -> int:
        return self._count + 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the run has used all of its diagnoses."""
        return self._count >= self._settings.diagnoses

    @property
    def summary(self) -> str:
        """The number of diagnoses, their cost and the failures so far, as text for a notice."""
        cost = self._budget.cost_usd
        spent = "" if cost is None else f", {cost:.4f} USD"
        return f"{self._count} diagnoses{spent}; abstained: {format_counts(self.failures)}"

    def record_use(self, number: int, tick: int, change: ProposedChange | None) -> None:
        """Record that the agent used the answer at that tick. `serve` writes the record, so that votes do not wait."""
        self._unwritten_uses.append((number, tick, change))
        self._answer_used.set()

    async def serve(self) -> None:
        """Answer requests until cancelled."""
        try:
            while True:
                request = await self._slot.next_question()
                self._count += 1
                result = await self._answer(request)
                self._answer_used.clear()
                self._slot.set_result(result)
                await self._answer_used.wait()  # the agent has collected the result and may post the next question
                await asyncio.to_thread(self._write_uses)
        finally:
            self._write_uses()
            for handler in self._handlers:  # the budget stays open for calls that are still in progress
                await asyncio.to_thread(handler.close)

    def _write_uses(self) -> None:
        while self._unwritten_uses:
            number, tick, change = self._unwritten_uses.popleft()
            try:
                self._store.record_use(number, tick, change)
            except OSError as error:
                log.warning("%s: could not record the use of diagnosis %d: %s", self._run_context.name, number, error)

    async def _answer(self, request: DiagnosisRequest) -> DiagnosisResult | ModelFailure:
        try:
            return await self._diagnose(request)
        except BusError as error:
            return self._record_failure("connection", f"could not read the log: {error}")
        except ModelFailure as failure:
            return self._record_failure(failure.kind, failure.detail)
        except OvenError as error:
            return self._record_failure("internal", str(error))
        except OSError as error:
            return self._record_failure("internal", f"could not store the diagnosis: {error.strerror}")
        except Exception as error:  # a bug; the message may quote a prompt
            return self._record_failure("internal", type(error).__name__)

    def _record_failure(self, kind: Any, detail: str) -> ModelFailure:
        """Count a failure and return it for the agent."""
        self.failures[kind] += 1
        return ModelFailure(kind, detail)

    async def _diagnose(self, request: DiagnosisRequest) -> DiagnosisResult:
        self._events += await self._run_context.read_log()
        context = await asyncio.to_thread(_read_context_with_alarms, self._events)
        view = await answer_requests_by_service(ask_graph(context.alarms, context.started), self._run_context.ask_graph)
        if not view.causes:
            raise ConfigError("the knowledge graph did not reply, so causes cannot be checked")
        folder = await asyncio.to_thread(self._store.begin, request, context.seq, view)
        supervisor, worker = self._handlers[0], self._handlers[-1]  # the same handler if no worker's model is set
        result = await diagnose(
            context,
            view,
            supervisor,
            worker,
            knobs=self._settings.actuators,
            seconds=self._settings.seconds,
            log_dir=folder,
            config=shown_settings(self._run_context.settings),
        )
        if result.failure_kind:
            self.failures[result.failure_kind] += 1
        await asyncio.to_thread(self._store.end, request.number, result)
        return result


def _read_context_with_alarms(events: list[Event]) -> LogContext:
    """Return the log's context with its alarms already computed. This is slow, so call it in a thread."""
    context = read_context(events)
    _ = context.alarms
    return context
