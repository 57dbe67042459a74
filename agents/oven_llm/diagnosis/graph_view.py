"""What the knowledge graph says of a run's alarms: ranked causes, remedies, and which causes there are at all.

The questions are a generator, as in oven_agents.runtime.kg_client: it yields (endpoint, request) and is sent the reply,
or None where no one answered, so that a process on the bus and a command ask alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from oven_agents.sdk.alternative_plans import phase
from oven_core.protocol.graph_requests import DiagnoseRequest, Symptom
from oven_core.protocol.graph_requests import Diagnosis as GraphDiagnosis
from oven_core.protocol.messages import RunStarted
from oven_llm.diagnosis.answer import NONE, Diagnosis, evidence
from oven_llm.diagnosis.detectors import LARGEST, TOGETHER, Alarm
from oven_llm.diagnosis.gauges import GAUGES
from oven_llm.diagnosis.log_context import LogContext

Asking = Generator[tuple[str, bytes], bytes | None, "GraphView"]
REMEDIES: Final = 8
"""Remedies that are shown."""
FULL: Final = 10.0
"""Standard deviations from which on an alarm counts in full; below, a symptom is as severe as its share of them."""
SYMPTOMS: Final = tuple(
    dict.fromkeys(
        [one for gauge in GAUGES for one in (gauge.up, gauge.down, gauge.jump) if one]
        + ["loss_nan", "grad_norm_spike", "judges_apart", "level_forgotten", "heldout_loss_rises"]
        + ["reward_up_heldout_down", "loss_plateau", "reward_plateau", "late_plateau", "slow_progress", "starved_level"]
        + ["kl_anchor_binds", "gradient_noise", "clip_always_bites", "heldout_stalls", "worse_after_restore"]
        + ["loss_oscillates", "judge_flat", "reward_at_ceiling"]
    )
)
"""What is asked about to learn which causes the graph has: all symptoms that a log can show."""


@dataclass(frozen=True)
class GraphView:
    """Ids of the graph. Empty where it was away."""

    ranked: tuple[tuple[str, float], ...] = ()
    """Causes of what the alarms show, the most likely first, with their rank (no calibrated probability)."""
    remedies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Remedies that this run can carry out, the best first, with what they change."""
    causes: frozenset[str] = frozenset()
    """All that there are for a run of this kind."""

    def plain(self) -> dict[str, Any]:
        return {
            "ranked": [{"cause": cause, "rank": float(f"{p:.4g}")} for cause, p in self.ranked],
            "remedies": [{"remedy": remedy, "changes": list(changes)} for remedy, changes in self.remedies],
            "causes": sorted(self.causes),
        }


def viewing(alarms: Sequence[Alarm], run: RunStarted) -> Asking:
    """Two questions: what the alarms may come from, and what there is."""
    seen: dict[str, float] = {}
    for alarm in alarms:
        seen[alarm.symptom] = max(seen.get(alarm.symptom, 0.0), min(1.0, alarm.size / FULL))
    known = yield "diagnose", _request(run, {symptom: 1.0 for symptom in SYMPTOMS}, 1)
    everything = _read(known)
    if everything is None:
        return GraphView()
    found = _read((yield "diagnose", _request(run, seen, REMEDIES))) if seen else None
    return GraphView(
        tuple((cause.id, cause.p) for cause in found.causes) if found else (),
        tuple((remedy.id, remedy.changes) for remedy in found.remedies if not remedy.unmet) if found else (),
        frozenset(cause.id for cause in everything.causes),
    )


def view(alarms: Sequence[Alarm], run: RunStarted, ask: Callable[[str, bytes], bytes | None]) -> GraphView:
    """The answers of a function in this process."""
    asking = viewing(alarms, run)
    try:
        request = next(asking)
        while True:
            request = asking.send(ask(*request))
    except StopIteration as end:
        made: GraphView = end.value
        return made


def by_detectors(log: LogContext, seen: GraphView) -> Diagnosis:
    """The diagnosis without a model: the graph's first cause, from when the alarms around the strongest one began. It
    asks for no change."""
    if not log.alarms or not seen.ranked:
        return Diagnosis(NONE, (), "", None, None, 0.5)
    first = _first(log.alarms)
    cause, rank = seen.ranked[0]
    last = min(max(first.raised, first.onset), log.ticks[-1])
    return Diagnosis(cause, (evidence(log, first.metric, first.onset, last),), "", None, None, float(f"{rank:.4g}"))


def _first(alarms: Sequence[Alarm]) -> Alarm:
    """The earliest of those that began with the strongest one."""
    strongest = max(alarms, key=lambda alarm: (min(alarm.size, LARGEST), -alarm.onset))
    together = [alarm for alarm in alarms if abs(alarm.onset - strongest.onset) <= TOGETHER]
    return min(together, key=lambda alarm: (alarm.onset, alarm.metric))


def _request(run: RunStarted, symptoms: dict[str, float], remedies: int) -> bytes:
    return DiagnoseRequest(
        phase=phase(run),
        symptoms=tuple(Symptom(id=id_, severity=severity) for id_, severity in sorted(symptoms.items())),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
        k=remedies,
    ).wire()


def _read(reply: bytes | None) -> GraphDiagnosis | None:
    try:
        return None if reply is None else GraphDiagnosis.model_validate_json(reply)
    except ValidationError:
        return None
