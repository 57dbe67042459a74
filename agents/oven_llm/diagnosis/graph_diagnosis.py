"""Asks the knowledge graph about a run's alarms, and returns ranked causes, remedies and all known causes.

As in oven_agents.runtime.kg_client, a generator asks the questions, so that a process on the bus and a command can both
run it. The generator yields pairs of endpoint and request. It receives the reply, or None if there is none."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from oven_agents.sdk.alternative_plans import phase
from oven_core.protocol.graph_requests import DiagnoseRequest, Symptom
from oven_core.protocol.graph_requests import Diagnosis as GraphDiagnosis
from oven_core.protocol.messages import RunStarted
from oven_llm.diagnosis.detectors import GAUGES, MAX_SIZE, SIMULTANEOUS_TICKS, Alarm
from oven_llm.diagnosis.log_context import LogContext
from oven_llm.diagnosis.model_answer import NONE, Diagnosis, compute_evidence

GraphQuestions = Generator[tuple[str, bytes], bytes | None, "GraphView"]
MAX_REMEDIES: Final = 8
"""Maximum number of remedies to request."""
FULL_SEVERITY_SIZE: Final = 10.0
"""Size in standard deviations from which an alarm has severity 1. Smaller alarms have a proportional severity."""
SYMPTOMS: Final = tuple(
    dict.fromkeys(
        [symptom for gauge in GAUGES for symptom in (gauge.up, gauge.down, gauge.jump) if symptom]
        + ["loss_nan", "grad_norm_spike", "judges_apart", "level_forgotten", "heldout_loss_rises"]
        + ["reward_up_heldout_down", "loss_plateau", "reward_plateau", "late_plateau", "slow_progress", "starved_level"]
        + ["kl_anchor_binds", "gradient_noise", "clip_always_bites", "heldout_stalls", "worse_after_restore"]
        + ["loss_oscillates", "judge_flat", "reward_at_ceiling"]
    )
)
"""All symptoms that a log can show. A request with all of them returns all known causes for a run of this kind."""


@dataclass(frozen=True)
class GraphView:
    """Causes and remedies for a run's alarms, as ids of graph nodes. Without a reply, all fields are empty."""

    ranked_causes: tuple[tuple[str, float], ...] = ()
    """Causes of the alarms with their ranks, most likely first. A rank is not a calibrated probability."""
    remedies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Remedies that this run supports, best first, with the knobs that they change."""
    causes: frozenset[str] = frozenset()
    """All known causes for a run of this kind."""

    def as_json(self) -> dict[str, Any]:
        return {
            "ranked": [{"cause": cause, "rank": float(f"{rank:.4g}")} for cause, rank in self.ranked_causes],
            "remedies": [{"remedy": remedy, "changes": list(changes)} for remedy, changes in self.remedies],
            "causes": sorted(self.causes),
        }


def ask_graph(alarms: Sequence[Alarm], run: RunStarted) -> GraphQuestions:
    """Request all causes, and then the causes and remedies of the alarms."""
    severities: dict[str, float] = {}
    for alarm in alarms:
        severities[alarm.symptom] = max(severities.get(alarm.symptom, 0.0), min(1.0, alarm.size / FULL_SEVERITY_SIZE))
    reply = yield "diagnose", _build_request(run, {symptom: 1.0 for symptom in SYMPTOMS}, 1)
    all_causes = _parse_diagnosis(reply)
    if all_causes is None:
        return GraphView()
    causes = frozenset(cause.id for cause in all_causes.causes)
    if not severities:
        return GraphView(causes=causes)
    reply = yield "diagnose", _build_request(run, severities, MAX_REMEDIES)
    diagnosis = _parse_diagnosis(reply)
    if diagnosis is None:
        return GraphView(causes=causes)
    ranked = tuple((cause.id, cause.p) for cause in diagnosis.causes)
    remedies = tuple((remedy.id, remedy.changes) for remedy in diagnosis.remedies if not remedy.unmet)
    return GraphView(ranked, remedies, causes)


def diagnose_without_model(log: LogContext, view: GraphView) -> Diagnosis:
    """Return the graph's top cause as a diagnosis without a change, with the metric of the first alarm as evidence."""
    if not log.alarms or not view.ranked_causes:
        return Diagnosis(NONE, evidence=(), knob="", value=None, revert_if=None, confidence=0.5)
    first_alarm = _find_first_alarm(log.alarms)
    cause, rank = view.ranked_causes[0]
    last_tick = min(max(first_alarm.raised, first_alarm.onset), log.ticks[-1])
    evidence = (compute_evidence(log, first_alarm.metric, first_alarm.onset, last_tick),)
    return Diagnosis(cause, evidence, knob="", value=None, revert_if=None, confidence=float(f"{rank:.4g}"))


def _find_first_alarm(alarms: Sequence[Alarm]) -> Alarm:
    """Return the earliest alarm that is simultaneous with the strongest one."""
    strongest = max(alarms, key=lambda alarm: (min(alarm.size, MAX_SIZE), -alarm.onset))
    simultaneous = [alarm for alarm in alarms if abs(alarm.onset - strongest.onset) <= SIMULTANEOUS_TICKS]
    return min(simultaneous, key=lambda alarm: (alarm.onset, alarm.metric))


def _build_request(run: RunStarted, severities: dict[str, float], max_remedies: int) -> bytes:
    return DiagnoseRequest(
        phase=phase(run),
        symptoms=tuple(Symptom(id=symptom, severity=severity) for symptom, severity in sorted(severities.items())),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
        k=max_remedies,
    ).wire()


def _parse_diagnosis(reply: bytes | None) -> GraphDiagnosis | None:
    try:
        return None if reply is None else GraphDiagnosis.model_validate_json(reply)
    except ValidationError:
        return None
