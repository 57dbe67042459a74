"""A diagnosis by a model: it writes programs over the log's context, and its answer is held against the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oven_core.protocol.messages import RunStarted
from oven_llm.sandbox.conversation import CallError
from oven_llm.supervisor.caps import Caps
from oven_llm.supervisor.diagnosis.answer import AnswerRefusedError, Diagnosis, evidence, verified
from oven_llm.supervisor.diagnosis.graph_view import GraphView
from oven_llm.supervisor.diagnosis.log_context import LogContext
from oven_llm.supervisor.diagnosis.questions import QUERY, prompt
from oven_llm.supervisor.models import ModelHandler
from oven_llm.supervisor.orchestrator import RunResult, arun

MAX_ITERATIONS: Final = 6
"""Turns: one to look, one or two to compare, one to answer, and as many to mend a program that failed."""
OUTPUT_LIMIT: Final = 4000
"""Characters of a block's output that the model is shown: a table of twenty metrics fits."""


@dataclass(frozen=True)
class Found:
    """The outcome of a question."""

    diagnosis: Diagnosis | None
    """None: there is no answer, or none that holds."""
    kind: str
    """Of the failure, to be counted; empty where there is a diagnosis."""
    why: str
    """The failure in words, without any of the model's."""
    result: RunResult

    @property
    def cost_usd(self) -> float | None:
        return self.result.cost_usd


def votable(run: RunStarted, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """Knobs that a diagnosis may ask for: settings among those that are wanted, None: all of them."""
    settings = [spec.name for spec in run.actuators if spec.kind != "action" and spec.effect == "setting"]
    return tuple(name for name in settings if wanted is None or name in wanted)


async def diagnose(
    log: LogContext,
    seen: GraphView,
    supervisor: ModelHandler,
    worker: ModelHandler,
    *,
    knobs: Sequence[str] | None = None,
    caps: Caps | None = None,
    log_dir: str | Path | None = None,
    resume: bool = False,
    config: Mapping[str, Any] | None = None,
    max_iterations: int = MAX_ITERATIONS,
    backend: str | None = None,
) -> Found:
    """`seen`: the graph's view of the log's alarms. `knobs`: those that may be proposed for, as far as the run has
    them. `config`: the run's resolved settings. The rest is as `orchestrator.run` has it. Raises ConfigError for a
    log without observations, and what `run` raises."""
    allowed = votable(log.started, knobs)

    def compute(metric: str, first: int, last: int) -> dict[str, Any]:
        """Evidence as FINAL takes it: the metric's mean from tick `first` to `last`, both included."""
        try:
            return evidence(log, str(metric), int(first), int(last)).plain()
        except (AnswerRefusedError, ValueError, TypeError, OverflowError) as error:
            raise CallError(str(error)) from None

    result = await arun(
        QUERY,
        log.plain(seen.plain(), config),
        supervisor,
        worker,
        max_iterations,
        log_dir,
        OUTPUT_LIMIT,
        primitives={"evidence": compute},
        prompt=prompt(allowed),
        caps=caps,
        resume=resume,
        backend=backend,
    )
    if result.ended != "final":
        return Found(None, result.ended, result.why or f"it ended by {result.ended}, without FINAL", result)
    try:
        return Found(verified(result.answer, log, seen.causes, allowed), "", "", result)
    except AnswerRefusedError as refused:
        return Found(None, refused.kind, str(refused), result)
