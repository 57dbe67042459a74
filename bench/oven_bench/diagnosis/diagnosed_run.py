"""One planted run, diagnosed twice: by detectors and the graph alone, and by programs that come over real HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from pydantic.dataclasses import dataclass as checked

from oven_bench.diagnosis.planted_run import planted
from oven_bench.diagnosis.scripted_supervisor import script
from oven_bench.judging.judge_endpoint import Endpoint
from oven_kg.service.endpoints import answers
from oven_llm.diagnosis.diagnosing import DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import GraphView, by_detectors, view
from oven_llm.diagnosis.log_context import LogContext, context_of
from oven_llm.diagnosis.model_answer import NONE, Diagnosis
from oven_llm.supervisor.models import OpenAIHandler

MODEL: Final = "scripted"


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the model is; empty: the script of this bench, served on the spot."""

    base_url: str = ""
    model: str = MODEL


@checked(frozen=True, slots=True)
class Named:
    """What a diagnosis said of one run."""

    cause: str
    onset: int | None
    failure: str = ""
    """Why no answer held; empty: one did."""


@checked(frozen=True, slots=True)
class Row:
    """One planted run, and what was said of it."""

    family: str
    kind: str
    seed: int
    healthy: bool
    onset: int
    """The first tick that the fault acts on."""
    detectors: Named
    programs: Named
    input_tokens: int
    output_tokens: int
    calls: int
    usd: float | None
    """As the endpoint's price says; None: it is not known."""
    seconds: float
    """Of the second diagnosis, its calls included."""


def play(family: str, seed: int, asked: Asked) -> Row:
    """In a worker, on one thread."""
    run = planted(family, seed)
    log = context_of(run.events)
    seen = view(log.alarms, log.started, answers())
    found = asyncio.run(_by_programs(log, seen, asked))
    used, result = found.result.supervisor_usage, found.result
    return Row(
        family,
        family.partition(".")[0],
        seed,
        run.healthy,
        run.onset,
        _named(by_detectors(log, seen)),
        _said(found),
        used.input_tokens + result.worker_usage.input_tokens,
        used.output_tokens + result.worker_usage.output_tokens,
        result.calls,
        found.cost_usd,
        round(result.elapsed, 4),
    )


async def _by_programs(log: LogContext, seen: GraphView, asked: Asked) -> DiagnosisResult:
    if asked.base_url:
        return await _ask(log, seen, asked.model, asked.base_url)
    endpoint = Endpoint()
    endpoint.script = script
    async with endpoint.running():
        return await _ask(log, seen, asked.model, endpoint.openai_url)


async def _ask(log: LogContext, seen: GraphView, model: str, url: str) -> DiagnosisResult:
    handler = await asyncio.to_thread(OpenAIHandler, model, url)
    try:
        return await diagnose(log, seen, handler, handler)
    finally:
        await asyncio.to_thread(handler.close)


def _named(diagnosis: Diagnosis) -> Named:
    return Named(diagnosis.cause, diagnosis.onset)


def _said(found: DiagnosisResult) -> Named:
    """An answer that does not hold names nothing."""
    return _named(found.diagnosis) if found.diagnosis is not None else Named(NONE, None, found.kind)
