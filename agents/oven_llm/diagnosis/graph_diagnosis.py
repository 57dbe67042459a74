"""Asks the knowledge graph about a run's alarms, and returns remedies and all known causes.

As in oven_agents.runtime.kg_client, a generator asks the questions, so that a process on the bus and a command can both
run it. The generator yields pairs of endpoint and request. It receives the reply, or None if there is none."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from oven_agents.diagnosis.detectors import GAUGES, Alarm
from oven_agents.sdk.alternative_plans import diagnose_request
from oven_core.protocol.graph_requests import Diagnosis as GraphDiagnosis
from oven_core.protocol.messages import RunStarted

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
    """Remedies for a run's alarms and all known causes, as ids of graph nodes. Without a reply, both are empty."""

    remedies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Remedies that this run supports, best first, with the knobs that they change."""
    causes: frozenset[str] = frozenset()
    """All known causes for a run of this kind."""

    def as_json(self) -> dict[str, Any]:
        return {
            "remedies": [{"remedy": remedy, "changes": list(changes)} for remedy, changes in self.remedies],
            "causes": sorted(self.causes),
        }


def ask_graph(alarms: Sequence[Alarm], run: RunStarted) -> GraphQuestions:
    """Request all causes, and then the remedies of the alarms."""
    severities: dict[str, float] = {}
    for alarm in alarms:
        severities[alarm.symptom] = max(severities.get(alarm.symptom, 0.0), min(1.0, alarm.size / FULL_SEVERITY_SIZE))
    reply = yield "diagnose", diagnose_request(dict.fromkeys(SYMPTOMS, 1.0), run, 1).wire()
    all_causes = _parse_diagnosis(reply)
    if all_causes is None:
        return GraphView()
    causes = frozenset(cause.id for cause in all_causes.causes)
    if not severities:
        return GraphView(causes=causes)
    reply = yield "diagnose", diagnose_request(severities, run, MAX_REMEDIES).wire()
    diagnosis = _parse_diagnosis(reply)
    if diagnosis is None:
        return GraphView(causes=causes)
    remedies = tuple((remedy.id, remedy.changes) for remedy in diagnosis.remedies if not remedy.unmet)
    return GraphView(remedies, causes)


def _parse_diagnosis(reply: bytes | None) -> GraphDiagnosis | None:
    try:
        return None if reply is None else GraphDiagnosis.model_validate_json(reply)
    except ValidationError:
        return None
