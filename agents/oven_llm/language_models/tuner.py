"""A language model that is asked for a vote now and then, and never waited for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from oven_agents.runtime.companion import AskGraph, Surroundings
from oven_agents.sdk.agent import Agent, Answer, Notice
from oven_agents.sdk.window import Window
from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis
from oven_core.protocol.messages import RunStarted
from oven_llm.language_models import tuner_answer, tuner_question
from oven_llm.language_models.asker import Asker
from oven_llm.language_models.call_limit import CallLimit
from oven_llm.language_models.desk import Desk, counted
from oven_llm.language_models.tuner_answer import Advice
from oven_llm.language_models.window_summary import diagnosed, enquiry, summary, symptoms
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.language_models import TunerSettings

log = logging.getLogger("oven.agent")

OFF = "no model is configured: set tuner.llm, e.g. tuner: {llm: {provider: claude, model: NAME}}"
LEAST = 12
"""Observations before the first question: ten newest and something to hold them against."""


@dataclass(frozen=True)
class Enquiry:
    """A window as it is asked about."""

    shown: dict[str, Any]
    seen: tuple[str, ...]
    graph: DiagnoseRequest | None
    metrics: tuple[str, ...]
    knobs: dict[str, tuple[float, float, float]]
    """Actuator → value, low, high."""


class Tuner(Agent):
    """Signals: whatever the model makes of the window's figures, the knobs' bounds, the last changes with what the
    objective did after them, and the knowledge graph's diagnosis of what moved.

    Actions: one value for one scalar of `tuner.actuators`, by a JSON schema and within its bounds, or nothing. The
    answer is cast at a later tick, so that training waits for none (as in arXiv 2606.29871). It expires `tuner.expires`
    ticks after the window that was asked about, and where the knob has moved since.

    False alarms: unknown, and for each model another. So it is a shadow and not trusted unless the settings say
    otherwise; its confidences are scored like any agent's (`oven-controller calibration`).

    Limits: a failure (a refusal, prose, a value out of bounds, a deadline) is an abstention, counted by kind and told
    in its status. It asks `tuner.calls` times in a run. A recording cannot be asked again.
    """

    version = "1"
    unrepeatable = (
        "asks a language model, whose answers are not in the log: its votes cannot be made again from a recording; "
        "`oven-controller calibration` scores those that it cast"
    )

    def __init__(self) -> None:
        self.moves: tuple[str, ...] = ()  # type: ignore[misc]
        self.desk: Desk[Enquiry, Advice | None] = Desk()
        self.unused: Counter[str] = Counter()
        """Answers that became no vote, by reason: expired, superseded."""
        self._settings = TunerSettings()
        self._asker: Asker | None = None
        self._off = OFF
        self._name = "tuner"

    def begin(self, around: Surroundings) -> Coroutine[Any, Any, None] | None:
        """Read the settings, and ask beside the votes if a model is named there."""
        self._name = around.name
        try:
            settings = _settings(around.settings)
            if settings.llm is None:
                return None
            limit = CallLimit(around.folder, around.name, settings.calls)
            self._asker = Asker(around.name, settings.llm, around.providers_file, limit, settings.deadline_s)
        except ConfigError as error:
            self._off = str(error)
            return None
        self._settings, self._off = settings, ""
        self.moves = settings.actuators  # type: ignore[misc]
        self.version = f"1 ({settings.llm.model})"  # type: ignore[misc]
        return self._beside(self._asker, around.ask_graph)

    def cannot_fire(self, run: RunStarted) -> str | None:
        if self._off:
            return self._off
        kinds = {spec.name: spec.kind for spec in run.actuators}
        if not any(kinds.get(name) == "scalar" for name in self.moves):
            return f"the run announces none of {', '.join(self.moves)} as a scalar"
        if not _targets(run):
            return "the run announces no metric with a better direction, so that no vote could name its target"
        return None

    def vote(self, window: Window) -> Answer:
        answered = self.desk.take()
        if answered is None:
            return self._ask_if_due(window)
        if isinstance(answered.found, ModelFailure):
            return self._failed(answered.found)
        if answered.found is None:
            log.info("%s: nothing to change, says the model of tick %d", self._name, answered.tick)
            return None
        advice, asked = answered.found, answered.asked
        if window.tick > answered.tick + self._settings.expires:
            return self._unused("expired", f"the answer of tick {answered.tick} came at {window.tick}")
        knob = window.knobs.get(advice.actuator)
        if knob is None or knob.value != asked.knobs[advice.actuator][0]:
            return self._unused("superseded", f"{advice.actuator} has moved since tick {answered.tick}")
        if advice.value == knob.value:
            return self._unused("superseded", f"{advice.actuator} has the value that was proposed")
        model = self._asker.model if self._asker is not None else ""
        return window.propose(
            advice.actuator,
            advice.value,
            confidence=advice.confidence,
            why=f"{advice.reason} ({model}, asked at tick {answered.tick})",
            target=advice.target,
            expected_change=advice.expected_change,
            horizon=advice.horizon,
            evidence=[f"symptom:{id_}" for id_ in asked.seen],
        )

    def _ask_if_due(self, window: Window) -> Notice | None:
        if self._asker is None or not self.desk.free or len(window.observations) < LEAST:
            return None
        if self._asker.limit.spent:
            return Notice("calls", f"all {self._asker.limit.most} calls of tuner.calls are made: {self._told()}")
        if self.desk.asked_tick >= 0 and window.tick < self.desk.asked_tick + self._settings.every:
            return None
        seen, names = symptoms(window), [name for name in self.moves if _is_scalar(window, name)]
        if names:
            knobs = {name: _bounded(window, name) for name in names}
            graph = enquiry(window, seen) if seen else None
            self.desk.put(Enquiry(summary(window, names), seen, graph, _targets(window.run), knobs), window.tick)
        return None

    async def _beside(self, asker: Asker, ask_graph: AskGraph) -> None:
        """One question after another, for as long as the process lives."""
        try:
            while True:
                asked = await self.desk.wanted()
                self.desk.answer(await self._found(asker, ask_graph, asked))
        finally:
            await asker.close()

    async def _found(self, asker: Asker, ask_graph: AskGraph, asked: Enquiry) -> Advice | ModelFailure | None:
        reply = await ask_graph("diagnose", asked.graph.wire()) if asked.graph is not None else None
        question = tuner_question.question(asked.shown, asked.seen, diagnosed(_diagnosis(reply)), asked.metrics)
        bounds = {name: (low, high) for name, (_, low, high) in asked.knobs.items()}
        try:
            return await asker.ask(question, lambda text: tuner_answer.read(text, bounds, asked.metrics))
        except ModelFailure as failure:
            return failure
        except Exception as error:  # a fault of ours
            return ModelFailure("internal", type(error).__name__)

    def _failed(self, failure: ModelFailure) -> Notice:
        return Notice(failure.kind, f"abstains: {failure}; so far {self._told()}")

    def _unused(self, kind: str, why: str) -> Notice:
        self.unused[kind] += 1
        return Notice(kind, f"no vote: {why}; so far {self._told()}")

    def _told(self) -> str:
        assert self._asker is not None
        limit = self._asker.limit
        cost = f", {limit.cost_usd:.4f} USD" if limit.cost_usd else ""
        return f"{limit.made} calls{cost}; abstained: {counted(self._asker.failed)}; unused: {counted(self.unused)}"


def _settings(resolved: dict[str, Any]) -> TunerSettings:
    try:
        return TunerSettings.model_validate(resolved.get("tuner", {}))
    except ValidationError as error:
        raise ConfigError(
            f"the run's settings of `tuner` have {error.error_count()} faults; `up` writes them"
        ) from None


def _targets(run: RunStarted) -> tuple[str, ...]:
    return tuple(metric.name for metric in run.metrics if metric.better != "neither")


def _is_scalar(window: Window, name: str) -> bool:
    knob = window.knobs.get(name)
    return knob is not None and knob.spec.kind == "scalar" and None not in (knob.spec.low, knob.spec.high)


def _bounded(window: Window, name: str) -> tuple[float, float, float]:
    knob = window.knobs[name]
    assert knob.spec.low is not None and knob.spec.high is not None
    return knob.number, knob.spec.low, knob.spec.high


def _diagnosis(reply: bytes | None) -> Diagnosis | None:
    try:
        return None if reply is None else Diagnosis.model_validate_json(reply)
    except ValidationError:
        return None
