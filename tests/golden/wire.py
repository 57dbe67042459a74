"""What messages say, without the fields that messages of a later version add."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.golden.store import Json, digest_of

from oven_core.protocol.events import Event

DECISION = ("tick", "actuator", "before", "value", "verdict")
"""What stands in the golden files as it is; the rest is in a digest."""
VOTE = ("tick", "actuator", "stance", "value", "confidence")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "AgentStatus": ("state", "tick", "seen", "reason"),
    "BallotOpened": ("id", "actuator", "proposal", "opened_by", "tick", "closes_at_tick", "eligible"),
    "CommandAnswer": ("command", "operator", "action", "done", "reason", "decision", "tick"),
    "Decision": (
        *DECISION,
        *("id", "ballot", "reason", "apply_at_tick", "expires_at_tick", "snapshot_first"),
        *("target", "expected_change", "horizon", "command", "of", "plan", "tally"),
    ),
    "Observation": ("tick", "step", "progress", "metrics"),
    "Outcome": (
        *("decision_id", "actuator", "target", "withheld", "scored", "reason", "from_tick", "tick", "before", "after"),
        *("samples", "gain", "forecast", "noise", "control", "beat", "charge", "lines"),
    ),
    "Receipt": ("decision_id", "command", "actuator", "status", "before", "after", "tick", "step", "reason"),
    "RunEnded": ("reason", "detail", "tick", "step", "metrics", "lockstep_timeouts", "dropped_observations"),
    "StepClosed": ("tick",),
    "Vote": (*VOTE, "ballot", "target", "expected_change", "horizon", "rationale", "evidence", "plan"),
}
"""Message → its fields of which a change is a change of behaviour. What a run announces of itself (RunStarted: knobs,
metrics, rules) is not compared: it says how the run is described, and descriptions get more fields."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "tally": ("agent", "stance", "value", "shadow", "newcomer", "confidence", "reputation", "weight", "rationale"),
    "lines": ("agent", "stance", "shadow", "confidence", "success", "merit", "before", "after"),
}
"""Field with a list of lines → the fields of a line."""


def fields_of(event: Event) -> dict[str, Any]:
    """A message as it is on the wire."""
    fields: dict[str, Any] = json.loads(event.data)
    return fields


def picked(message: Mapping[str, Any]) -> list[Json]:
    """Its type and the values of its FIELDS."""
    kind = message["type"]
    return [kind, *(_value(field, message.get(field)) for field in FIELDS[kind])]


def short(message: Mapping[str, Any]) -> list[Json]:
    """A decision or a vote, as it stands in the golden files."""
    return [message.get(field) for field in (DECISION if message["type"] == "Decision" else VOTE)]


def decisions(messages: Iterable[Mapping[str, Any]]) -> list[list[Json]]:
    return [short(message) for message in messages if message["type"] == "Decision"]


def by_type(messages: Iterable[Mapping[str, Any]]) -> dict[str, Json]:
    """Type → how many there are, and the digest of them in order."""
    rows_by_type: dict[str, list[Json]] = {}
    for message in messages:
        if message["type"] in FIELDS:
            rows_by_type.setdefault(message["type"], []).append(picked(message))
    return {kind: [len(rows), digest_of(rows)] for kind, rows in sorted(rows_by_type.items())}


def in_order(log: Iterable[Event]) -> str:
    """The digest of all that was said by everybody, in the order of the log."""
    pairs = ((event.author, fields_of(event)) for event in log)
    return digest_of([author, *picked(message)] for author, message in pairs if message["type"] in FIELDS)


def _value(field: str, value: Any) -> Json:
    if field not in PARTS or value is None:
        return value
    return [[line.get(name) for name in PARTS[field]] for line in value]
