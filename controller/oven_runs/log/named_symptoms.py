"""The symptoms that agents named in a run, and what the knowledge graph is to know of the run. A pure fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import DiagnoseRequest, Phase, Symptom
from oven_core.protocol.messages import Observation, RunStarted, Vote
from oven_runs.log.since import BEGINNING, Since

SYMPTOM: Final = "symptom:"
"""A vote's evidence "symptom:loss_spike" names a node of the graph."""
ASKED: Final = 64
"""Symptoms that a question to the graph may hold (`DiagnoseRequest.symptoms`)."""


class NamedSymptom(BaseModel):
    """A symptom, and who saw it."""

    model_config = ConfigDict(frozen=True)

    id: str
    votes: int = Field(description="that name it")
    last_step: int
    last_tick: int
    agents: tuple[str, ...]


@dataclass
class NamedSymptoms:
    """Feed it the log's events in order."""

    since: Since = BEGINNING
    _started: RunStarted | None = None
    _step: int = 0
    _tick: int = 0
    _newest: datetime | None = None
    _seen: list[tuple[str, str, int, int, datetime]] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Take the next event in."""
        self._newest = event.time
        match event.body:
            case RunStarted() as started:
                self._started, self._step = started, started.step
            case Observation() as body:
                self._step, self._tick = body.step, max(self._tick, body.tick)
            case Vote() as vote:
                named = (entry.removeprefix(SYMPTOM) for entry in vote.evidence if entry.startswith(SYMPTOM))
                self._seen += [(id_, event.author, self._step, self._tick, event.time) for id_ in dict.fromkeys(named)]

    def found(self) -> list[NamedSymptom]:
        """The newest first."""
        by_id: dict[str, list[tuple[str, str, int, int, datetime]]] = {}
        for one in self._seen:
            if self.since.holds(one[2], one[4], self._newest):
                by_id.setdefault(one[0], []).append(one)
        named = [
            NamedSymptom(
                id=id_,
                votes=len(seen),
                last_step=seen[-1][2],
                last_tick=seen[-1][3],
                agents=tuple(sorted({agent for _, agent, *_ in seen})),
            )
            for id_, seen in by_id.items()
        ]
        return sorted(named, key=lambda one: (-one.last_tick, one.id))

    def question(self, symptoms: Sequence[str], remedies: int) -> DiagnoseRequest:
        """What to ask the graph of them; at most ASKED are asked about."""
        run = self._started
        phase: Phase = "grpo" if run and any(metric.name == "reward" for metric in run.metrics) else ""
        return DiagnoseRequest(
            phase=phase,
            symptoms=tuple(Symptom(id=id_) for id_ in symptoms[:ASKED]),
            actuators=tuple(spec.name for spec in run.actuators) if run else (),
            metrics=tuple(metric.name for metric in run.metrics) if run else (),
            held_out=any(metric.held_out for metric in run.metrics) if run else False,
            k=remedies,
        )
