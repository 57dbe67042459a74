"""Asks the knowledge graph about a run's alarms: ranked causes, remedies and a list of all known causes.

As in oven_agents.runtime.kg_client, a generator asks the questions. It yields (endpoint, request) and receives the
reply, or None without an answer. A process on the bus and a command can both use it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from oven_agents.sdk.alternative_plans import phase
from oven_core.protocol.graph_requests import DiagnoseRequest, Symptom
from oven_core.protocol.graph_requests import Diagnosis as GraphDiagnosis
from oven_core.protocol.messages import RunStarted
from oven_llm.diagnosis.detectors import GAUGES, LARGEST, TOGETHER, Alarm
from oven_llm.diagnosis.log_context import LogContext
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, evidence

Asking = Generator[tuple[str, bytes], bytes | None, "GraphView"]
REMEDIES: Final = 8
"""Maximum number of remedies."""
FULL: Final = 10.0
"""Standard deviations at which an alarm counts in full. A weaker symptom has a proportional severity."""
SYMPTOMS: Final = tuple(
    dict.fromkeys(
        [symptom for gauge in GAUGES for symptom in (gauge.up, gauge.down, gauge.jump) if symptom]
        + ["loss_nan", "grad_norm_spike", "judges_apart", "level_forgotten", "heldout_loss_rises"]
        + ["reward_up_heldout_down", "loss_plateau", "reward_plateau", "late_plateau", "slow_progress", "starved_level"]
        + ["kl_anchor_binds", "gradient_noise", "clip_always_bites", "heldout_stalls", "worse_after_restore"]
        + ["loss_oscillates", "judge_flat", "reward_at_ceiling"]
    )
)
"""All symptoms that a log can show. Asking about them reveals which causes the graph has."""


@dataclass(frozen=True)
class GraphView:
    """Causes and remedies as ids of graph nodes. Empty if the graph did not answer."""

    ranked: tuple[tuple[str, float], ...] = ()
    """Causes of the alarms, most likely first, with their rank, which is not a calibrated probability."""
    remedies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Remedies that this run can carry out, best first, and the knobs that they change."""
    causes: frozenset[str] = frozenset()
    """All causes for a run of this kind."""

    def plain(self) -> dict[str, Any]:
        return {
            "ranked": [{"cause": cause, "rank": float(f"{p:.4g}")} for cause, p in self.ranked],
            "remedies": [{"remedy": remedy, "changes": list(changes)} for remedy, changes in self.remedies],
            "causes": sorted(self.causes),
        }


def viewing(alarms: Sequence[Alarm], run: RunStarted) -> Asking:
    """Ask two questions: which causes exist, and which of them explain the alarms."""
    severities: dict[str, float] = {}
    for alarm in alarms:
        severities[alarm.symptom] = max(severities.get(alarm.symptom, 0.0), min(1.0, alarm.size / FULL))
    reply = yield "diagnose", _request(run, {symptom: 1.0 for symptom in SYMPTOMS}, 1)
    everything = _parsed(reply)
    if everything is None:
        return GraphView()
    explained = _parsed((yield "diagnose", _request(run, severities, REMEDIES))) if severities else None
    return GraphView(
        tuple((cause.id, cause.p) for cause in explained.causes) if explained else (),
        tuple((remedy.id, remedy.changes) for remedy in explained.remedies if not remedy.unmet) if explained else (),
        frozenset(cause.id for cause in everything.causes),
    )


def by_detectors(log: LogContext, view: GraphView) -> Diagnosis:
    """Return a diagnosis without a model: the graph's top cause, with the onset of the first alarm near the strongest
    one. It requests no change."""
    if not log.alarms or not view.ranked:
        return Diagnosis(NONE, (), "", None, None, 0.5)
    first = _first(log.alarms)
    cause, rank = view.ranked[0]
    last = min(max(first.raised, first.onset), log.ticks[-1])
    return Diagnosis(cause, (evidence(log, first.metric, first.onset, last),), "", None, None, float(f"{rank:.4g}"))


def _first(alarms: Sequence[Alarm]) -> Alarm:
    """Return the earliest of the alarms that began together with the strongest one."""
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


def _parsed(reply: bytes | None) -> GraphDiagnosis | None:
    try:
        return None if reply is None else GraphDiagnosis.model_validate_json(reply)
    except ValidationError:
        return None
