"""One-sentence descriptions of a learner's announcements, for `log`, `explain` and the monitor."""

from __future__ import annotations

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import ActuatorSpec
from oven_runs.log.run_summary import format_value

MAX_CHOICES = 8
"""Maximum number of choices listed in a sentence."""


def describe_actuator(announcement: ActuatorAnnounced) -> str:
    """Describe an announced actuator with its allowed and current values."""
    spec = announcement.actuator
    current_value = "" if spec.value is None else f", now {format_value(spec.value)}"
    return f"announced {spec.name} at step {announcement.step}: {_allowed_values(spec)}{current_value}"


def describe_prompts(body: PromptsInjected) -> str:
    """Describe added prompts: their number, author and reason, and how many older prompts were removed."""
    count = len(body.hashes)
    removed = f", {body.evicted} older ones removed" if body.evicted else ""
    prompts = "1 prompt" if count == 1 else f"{count} prompts"
    return f"{body.by} added {prompts} to {body.topic} at step {body.step} ({body.held} in total{removed}): {body.why}"


def _allowed_values(spec: ActuatorSpec) -> str:
    if spec.kind == "scalar":
        return f"{format_value(spec.low)} to {format_value(spec.high)}"
    if spec.kind == "action":
        return "an action"
    more = f" and {len(spec.choices) - MAX_CHOICES} more" if len(spec.choices) > MAX_CHOICES else ""
    choices = ", ".join(spec.choices[:MAX_CHOICES]) + more
    return f"shares of {choices}" if spec.kind == "simplex" else f"one of {choices}"
