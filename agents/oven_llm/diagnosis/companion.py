"""Background task of the agent `supervisor`: asks a model to diagnose the log, without delaying votes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oven_agents.runtime.companion import Surroundings
from oven_agents.runtime.kg_client import answered_by_service
from oven_core.errors import BusError, ConfigError, OvenError, reason
from oven_core.files import write_atomic
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Value
from oven_llm.diagnosis.diagnosing import DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import GraphView, viewing
from oven_llm.diagnosis.log_context import LogContext, context_of, shown_settings
from oven_llm.diagnosis.model_answer import ProposedChange
from oven_llm.language_models.question_desk import Desk, counted
from oven_llm.providers.budget import Budget
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.models import ModelHandler, ProviderHandler
from oven_runs.home.model_spend import NAME, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.language_models import SupervisorSettings

log = logging.getLogger("oven.agent")

FOLDER: Final = "diagnoses"
"""Name of the folder for diagnoses in the run's folder."""


def connected_models(around: Surroundings, settings: SupervisorSettings) -> tuple[Budget, list[ModelHandler]]:
    """Connect the supervisor's model, and the worker's model if it differs, with one budget. Importing their SDKs takes
    a second or two. Raises ConfigError for an unknown provider, without a key or an SDK, and if the budget caps US
    dollars and a price is unknown."""
    cap = Cap(BudgetSettings(usd=settings.usd, tokens=settings.tokens), "supervisor", around.name)
    budget = Budget([cap], around.folder / NAME, around.name)
    handlers: list[ModelHandler] = [
        ProviderHandler.connected(
            model,
            around.providers_file,
            f"supervisor.{role}",
            budget=budget,
            account=f"{around.name}/{role}",
            timeout_s=settings.seconds,
        )
        for role, model in (("model", settings.model), ("worker", settings.worker))
        if model is not None
    ]
    return budget, handlers


@dataclass(frozen=True)
class DiagnosisRequest:
    """A request from the agent for one diagnosis."""

    number: int
    tick: int
    """Tick of the agent's newest observation."""
    values: Mapping[str, Value]
    """Knob → its value at that time. If the value has changed since, the answer is void."""


class DiagnosisStore:
    """Stores a run's diagnoses on disk, for users and restarted agents. Each has a folder: question.json, the logs of
    the conversation, outcome.json, and taken.json once a vote has used the answer. Raises OSError if writing fails."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER

    @property
    def count(self) -> int:
        """Return the number of diagnoses begun, answered or not, including those before a restart."""
        return max(self._numbers(), default=0)

    def begin(self, request: DiagnosisRequest, seq: int, view: GraphView) -> Path:
        """Write the question and return its folder. `seq`: sequence of the newest event in the context."""
        self._path(request.number).mkdir(parents=True, mode=0o700, exist_ok=True)
        question = {"tick": request.tick, "seq": seq, "values": dict(request.values), "graph": view.plain()}
        self._write(request.number, "question", question)
        return self._path(request.number)

    def end(self, number: int, result: DiagnosisResult) -> None:
        """Write the outcome of the diagnosis."""
        outcome = {
            "diagnosis": result.diagnosis.plain() if result.diagnosis else None,
            "failure": result.kind or None,
            "why": result.why,
            "ended": result.result.ended,
            "calls": result.result.calls,
            "cost_usd": result.cost_usd,
            "seconds": round(result.result.elapsed, 3),
        }
        self._write(number, "outcome", outcome)

    def take(self, number: int, tick: int, change: ProposedChange | None) -> None:
        """Record that a vote at that tick used the answer, and the change that it may revert. Does nothing for a
        question that was never begun."""
        if self._path(number).is_dir():
            plain = change.model_dump(mode="json", by_alias=True) if change else None
            self._write(number, "taken", {"tick": tick, "change": plain})

    def newest_change(self) -> ProposedChange | None:
        """Return the newest change that may be reverted. Raises ConfigError for a file that cannot be read."""
        for number in sorted(self._numbers(), reverse=True):
            path = self._path(number) / "taken.json"
            try:
                change = json.loads(path.read_bytes()).get("change") if path.is_file() else None
                if change:
                    return ProposedChange.model_validate(change)
            except (OSError, ValueError, AttributeError) as error:
                raise ConfigError(f"{path} does not hold a vote's change ({reason(error)}); move it away") from None
        return None

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:03}"

    def _write(self, number: int, name: str, content: dict[str, Any]) -> None:
        write_atomic(self._path(number) / f"{name}.json", json.dumps(content), private=True)

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self._folder.glob("*") if path.name.isdigit()]


class DiagnosisCompanion:
    """Answers diagnosis requests one at a time. Raises ConfigError if the model cannot be used."""

    def __init__(
        self, around: Surroundings, settings: SupervisorSettings, desk: Desk[DiagnosisRequest, DiagnosisResult]
    ) -> None:
        self.failed: Counter[str] = Counter()
        """Failed diagnoses by kind."""
        self._around, self._settings, self._desk = around, settings, desk
        self._store = DiagnosisStore(around.folder)
        self._begun = self._store.count
        self._budget, self._handlers = connected_models(around, settings)
        self._events: list[Event] = []
        self._used: deque[tuple[int, int, ProposedChange | None]] = deque()
        self._answer_used = asyncio.Event()

    @property
    def next_number(self) -> int:
        return self._begun + 1

    @property
    def exhausted(self) -> bool:
        """Whether the run has used all of its diagnoses."""
        return self._begun >= self._settings.diagnoses

    @property
    def summary(self) -> str:
        """Return a summary of the diagnoses so far, for a notice."""
        cost = self._budget.cost_usd
        spent = "" if cost is None else f", {cost:.4f} USD"
        return f"{self._begun} diagnoses{spent}; abstained: {counted(self.failed)}"

    def used(self, number: int, tick: int, change: ProposedChange | None) -> None:
        """Note that a vote at that tick used the answer. It is written later, because votes must not wait for disk."""
        self._used.append((number, tick, change))
        self._answer_used.set()

    async def serve(self) -> None:
        """Answer requests until the process ends."""
        try:
            while True:
                request = await self._desk.next_question()
                self._begun += 1
                result = await self._result_or_failure(request)
                self._answer_used.clear()
                self._desk.settle(result)
                await self._answer_used.wait()  # no other question can be asked before
                await asyncio.to_thread(self._write_used)
        finally:
            self._write_used()
            for handler in self._handlers:  # the budget stays open for calls that were left behind
                await asyncio.to_thread(handler.close)

    def _write_used(self) -> None:
        while self._used:
            number, tick, change = self._used.popleft()
            try:
                self._store.take(number, tick, change)
            except OSError as error:
                log.warning("%s: cannot record when diagnosis %d was used: %s", self._around.name, number, error)

    async def _result_or_failure(self, request: DiagnosisRequest) -> DiagnosisResult | ModelFailure:
        try:
            return await self._diagnose(request)
        except BusError as error:
            return self._failure("connection", f"the log cannot be read: {error}")
        except ModelFailure as failure:
            return self._failure(failure.kind, failure.detail)
        except OvenError as error:
            return self._failure("internal", str(error))
        except OSError as error:
            return self._failure("internal", f"the diagnosis cannot be stored ({error.strerror}), so it is not made")
        except Exception as error:  # a bug; its text may contain what was sent to a model
            return self._failure("internal", type(error).__name__)

    def _failure(self, kind: Any, detail: str) -> ModelFailure:
        self.failed[kind] += 1
        return ModelFailure(kind, detail)

    async def _diagnose(self, request: DiagnosisRequest) -> DiagnosisResult:
        self._events += await self._around.read_log()
        context = await asyncio.to_thread(_context_with_alarms, self._events)
        view = await answered_by_service(viewing(context.alarms, context.started), self._around.ask_graph)
        if not view.causes:
            raise ConfigError("the knowledge graph does not answer, so no cause could be checked against it")
        folder = await asyncio.to_thread(self._store.begin, request, context.seq, view)
        result = await diagnose(
            context,
            view,
            self._handlers[0],
            self._handlers[-1],
            knobs=self._settings.actuators,
            seconds=self._settings.seconds,
            log_dir=folder,
            config=shown_settings(self._around.settings),
        )
        if result.kind:
            self.failed[result.kind] += 1
        await asyncio.to_thread(self._store.end, request.number, result)
        return result


def _context_with_alarms(events: list[Event]) -> LogContext:
    """Return the log's context with its alarms. This is slow and runs in its own thread."""
    context = context_of(events)
    _ = context.alarms
    return context
