"""Collect the symptoms that agents named in a run, and build a knowledge graph query about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import DiagnoseRequest, Phase, Symptom
from oven_core.protocol.messages import Observation, RunStarted, Vote
from oven_runs.log.since import BEGINNING, Since

SYMPTOM: Final = "symptom:"
"""A vote's evidence "symptom:loss_spike" names a node of the graph."""
MOST_SYMPTOMS: Final = 64
"""Maximum symptoms in one request (`DiagnoseRequest.symptoms`)."""


class NamedSymptom(BaseModel):
    """A symptom and the agents that named it."""

    model_config = ConfigDict(frozen=True)

    id: str
    votes: int = Field(description="votes that name it")
    last_step: int
    last_tick: int
    agents: tuple[str, ...]


class _Mention(NamedTuple):
    symptom: str
    agent: str
    step: int
    tick: int
    time: datetime


@dataclass
class NamedSymptoms:
    """Collects the symptoms. Feed it the log's events in order."""

    since: Since = BEGINNING
    _started: RunStarted | None = None
    _step: int = 0
    _tick: int = 0
    _newest: datetime | None = None
    _mentions: list[_Mention] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self._newest = event.time
        match event.body:
            case RunStarted() as started:
                self._started, self._step = started, started.step
            case Observation() as body:
                self._step, self._tick = body.step, max(self._tick, body.tick)
            case Vote() as vote:
                named = [entry.removeprefix(SYMPTOM) for entry in vote.evidence if entry.startswith(SYMPTOM)]
                self._mentions += [
                    _Mention(symptom, event.author, self._step, self._tick, event.time)
                    for symptom in dict.fromkeys(named)
                ]

    def symptoms(self) -> list[NamedSymptom]:
        """Return the symptoms, newest first."""
        by_id: dict[str, list[_Mention]] = {}
        for mention in self._mentions:
            if self.since.includes(mention.step, mention.time, self._newest):
                by_id.setdefault(mention.symptom, []).append(mention)
        symptoms = [
            NamedSymptom(
                id=id_,
                votes=len(mentions),
                last_step=mentions[-1].step,
                last_tick=mentions[-1].tick,
                agents=tuple(sorted({mention.agent for mention in mentions})),
            )
            for id_, mentions in by_id.items()
        ]
        return sorted(symptoms, key=lambda symptom: (-symptom.last_tick, symptom.id))

    def question(self, symptoms: Sequence[str], remedies: int) -> DiagnoseRequest:
        """Return a request for causes and `remedies` remedies of at most MOST_SYMPTOMS symptoms."""
        run = self._started
        phase: Phase = "grpo" if run and any(metric.name == "reward" for metric in run.metrics) else ""
        return DiagnoseRequest(
            phase=phase,
            symptoms=tuple(Symptom(id=id_) for id_ in symptoms[:MOST_SYMPTOMS]),
            actuators=tuple(spec.name for spec in run.actuators) if run else (),
            metrics=tuple(metric.name for metric in run.metrics) if run else (),
            held_out=any(metric.held_out for metric in run.metrics) if run else False,
            k=remedies,
        )
