"""Collect the symptoms that agents named in a run, and build a diagnosis request for the knowledge graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import DiagnoseRequest, Phase, Symptom
from oven_core.protocol.messages import Observation, RunStarted, Vote
from oven_runs.log.since_option import BEGINNING, Since

SYMPTOM_PREFIX: Final = "symptom:"
"""Prefix in a vote's evidence. "symptom:loss_spike" names a node of the graph."""
MAX_SYMPTOMS: Final = 64
"""Maximum number of symptoms in one request (`DiagnoseRequest.symptoms`)."""


class NamedSymptom(BaseModel):
    """A symptom with the votes and agents that named it."""

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
    """Collects the symptoms that agents named. Pass the log's events to `feed` in order."""

    since: Since = BEGINNING
    _started: RunStarted | None = None
    _step: int = 0
    _tick: int = 0
    _newest_time: datetime | None = None
    _mentions: list[_Mention] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self._newest_time = event.time
        match event.body:
            case RunStarted() as started:
                self._started, self._step = started, started.step
            case Observation() as body:
                self._step, self._tick = body.step, max(self._tick, body.tick)
            case Vote() as vote:
                entries = [entry for entry in vote.evidence if entry.startswith(SYMPTOM_PREFIX)]
                for symptom in dict.fromkeys(entry.removeprefix(SYMPTOM_PREFIX) for entry in entries):
                    self._mentions.append(_Mention(symptom, event.author, self._step, self._tick, event.time))

    def symptoms(self) -> list[NamedSymptom]:
        """Return the symptoms, newest first."""
        by_id: dict[str, list[_Mention]] = {}
        for mention in self._mentions:
            if self.since.includes(mention.step, mention.time, self._newest_time):
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

    def diagnose_request(self, symptom_ids: Sequence[str], max_remedies: int) -> DiagnoseRequest:
        """Return a request for causes and up to `max_remedies` remedies of the first MAX_SYMPTOMS symptoms."""
        metrics = self._started.metrics if self._started else ()
        phase: Phase = "grpo" if any(metric.name == "reward" for metric in metrics) else ""  # otherwise unknown
        return DiagnoseRequest(
            phase=phase,
            symptoms=tuple(Symptom(id=id_) for id_ in symptom_ids[:MAX_SYMPTOMS]),
            actuators=tuple(spec.name for spec in self._started.actuators) if self._started else (),
            metrics=tuple(metric.name for metric in metrics),
            held_out=any(metric.held_out for metric in metrics),
            k=max_remedies,
        )
