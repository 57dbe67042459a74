"""The supervisor's companion: it reads the log, has a model diagnose it, and keeps what was said. No vote waits for
it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import Any

from oven_agents.runtime.companion import Surroundings
from oven_core.errors import BusError, ConfigError, OvenError
from oven_core.protocol.events import Event
from oven_llm.diagnosis.diagnosing import DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import GraphView, viewing
from oven_llm.diagnosis.log_context import LogContext, shown_settings
from oven_llm.diagnosis.transcripts import DiagnosisRequest, Question, Transcripts
from oven_llm.language_models.desk import Desk, counted
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.caps import Caps
from oven_llm.supervisor.models import ModelHandler, ProviderHandler
from oven_runs.home.model_spend import NAME, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import SupervisorSettings


class ConfiguredModels:
    """Raises ConfigError for a provider that there is not, and without a model's key."""

    def __init__(self, around: Surroundings, settings: SupervisorSettings) -> None:
        assert settings.model is not None
        self._around, self._settings = around, settings
        self._wanted = {"supervisor.model": settings.model}
        if settings.worker is not None:
            self._wanted["supervisor.worker"] = settings.worker
        known = catalogue(around.providers_file)
        for at, model in self._wanted.items():
            key_of(at, endpoint_of(around.name, model, known, at), at=at)
        self._budget: Budget | None = None
        self._handlers: list[ModelHandler] = []

    def connected(self) -> tuple[ModelHandler, ModelHandler]:
        """The supervisor and its worker. Importing their SDKs takes a second or two, the first time. Raises ConfigError
        where an SDK is not installed, or the budget caps US dollars and a price is not known."""
        if not self._handlers:
            settings, owner = self._settings, self._around.name
            cap = Cap(BudgetSettings(usd=settings.usd, tokens=settings.tokens), "supervisor", owner)
            self._budget = Budget([cap], self._around.folder / NAME, owner)
            self._handlers = [
                ProviderHandler.connected(
                    model,
                    self._around.providers_file,
                    at,
                    budget=self._budget,
                    account=f"{owner}/{at.rpartition('.')[2]}",
                    timeout_s=settings.seconds,
                )
                for at, model in self._wanted.items()
            ]
        return self._handlers[0], self._handlers[-1]

    @property
    def cost_usd(self) -> float | None:
        """Of the run so far; None where a price is not known."""
        return self._budget.cost_usd if self._budget is not None else 0.0

    def close(self) -> None:
        """The budget stays open: calls that were left behind book what they come to."""
        for handler in self._handlers:
            handler.close()


log = logging.getLogger("oven.agent")


class Enquirer:
    """One question after another. Raises ConfigError for a model that cannot be asked, and kept diagnoses that cannot
    be read: without their count the limit would not hold."""

    def __init__(
        self, around: Surroundings, settings: SupervisorSettings, desk: Desk[DiagnosisRequest, DiagnosisResult]
    ) -> None:
        self.failed: Counter[str] = Counter()
        """Diagnoses without an answer that holds, by kind."""
        self._around, self._settings, self._desk = around, settings, desk
        self._transcripts = Transcripts(around.folder)
        self._begun = self._transcripts.count
        self._models = ConfiguredModels(around, settings)
        self._events: list[Event] = []
        self._taken: deque[tuple[int, int]] = deque()
        self._took = asyncio.Event()

    @property
    def next_number(self) -> int:
        return self._begun + 1

    @property
    def spent(self) -> bool:
        """Whether all diagnoses of the run are made."""
        return self._begun >= self._settings.diagnoses

    @property
    def told(self) -> str:
        """What it has done, for a notice."""
        cost = self._models.cost_usd
        spent = "" if cost is None else f", {cost:.4f} USD"
        return f"{self._begun} diagnoses{spent}; abstained: {counted(self.failed)}"

    def took(self, number: int, tick: int) -> None:
        """The answer came to a vote at that tick. It is written down later: a vote waits for no disk."""
        self._taken.append((number, tick))
        self._took.set()

    async def beside(self) -> None:
        """For as long as the process lives."""
        try:
            while True:
                asked = await self._desk.next_question()
                self._begun += 1
                found = await self._found(asked)
                self._took.clear()
                self._desk.settle(found)
                await self._took.wait()  # nothing else can be asked before
                await asyncio.to_thread(self._write)
        finally:
            self._write()
            await asyncio.to_thread(self._models.close)

    def _write(self) -> None:
        while self._taken:
            number, tick = self._taken.popleft()
            try:
                self._transcripts.take(number, tick)
            except OSError as error:
                log.warning("%s: when diagnosis %d was taken cannot be kept: %s", self._around.name, number, error)

    async def _found(self, asked: DiagnosisRequest) -> DiagnosisResult | ModelFailure:
        try:
            return await self._diagnosed(asked)
        except BusError as error:
            return self._failure("connection", f"the log cannot be read: {error}")
        except ModelFailure as failure:
            return self._failure(failure.kind, failure.detail)
        except OvenError as error:
            return self._failure("internal", str(error))
        except OSError as error:
            return self._failure("internal", f"the diagnosis cannot be kept ({error.strerror}), so it is not made")
        except Exception as error:  # a fault of ours; its text may hold what was sent to a model
            return self._failure("internal", type(error).__name__)

    def _failure(self, kind: Any, why: str) -> ModelFailure:
        self.failed[kind] += 1
        return ModelFailure(kind, why)

    async def _diagnosed(self, asked: DiagnosisRequest) -> DiagnosisResult:
        self._events += await self._around.read_log()
        context = await asyncio.to_thread(_context, self._events)
        seen = await self._view(context)
        question = Question(asked.number, asked.tick, context.seq, asked.values, seen)
        place = await asyncio.to_thread(self._transcripts.begin, question)
        supervisor, worker = await asyncio.to_thread(self._models.connected)
        found = await diagnose(
            context,
            seen,
            supervisor,
            worker,
            knobs=self._settings.actuators,
            caps=Caps(seconds=self._settings.seconds),
            log_dir=place,
            config=shown_settings(self._around.settings),
        )
        if found.kind:
            self.failed[found.kind] += 1
        await asyncio.to_thread(self._transcripts.end, asked.number, found)
        return found

    async def _view(self, context: LogContext) -> GraphView:
        asking = viewing(context.alarms, context.started)
        try:
            request = next(asking)
            while True:
                request = asking.send(await self._around.ask_graph(*request))
        except StopIteration as end:
            seen: GraphView = end.value
        if not seen.causes:
            raise ConfigError("the knowledge graph does not answer, so that no cause could be held against it")
        return seen


def _context(events: list[Event]) -> LogContext:
    """With its alarms, which take the longest: in its own thread."""
    found = LogContext()
    for event in events:
        found.take(event)
    _ = found.alarms
    return found
