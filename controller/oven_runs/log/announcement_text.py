"""Describe a learner's announcements in one sentence each, for `log`, the monitor and `explain`."""

from __future__ import annotations

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import ActuatorSpec
from oven_runs.log.run_summary import text

NAMES = 8
"""Maximum choices listed in a sentence."""


def announced(body: ActuatorAnnounced) -> str:
    """Describe the announced actuator with its range and current value."""
    spec = body.actuator
    now = "" if spec.value is None else f", now {text(spec.value)}"
    return f"announced {spec.name} at step {body.step}: {_range(spec)}{now}"


def injected(body: PromptsInjected) -> str:
    """Describe injected prompts: their number, author, reason, and how many older prompts were removed for them."""
    count = len(body.hashes)
    room = f", {body.evicted} older ones made room" if body.evicted else ""
    prompts = "1 prompt" if count == 1 else f"{count} prompts"
    return f"{body.by} added {prompts} to {body.topic} at step {body.step} ({body.held} held{room}): {body.why}"


def _range(spec: ActuatorSpec) -> str:
    if spec.kind == "scalar":
        return f"{text(spec.low)} to {text(spec.high)}"
    if spec.kind == "action":
        return "an action"
    more = f" and {len(spec.choices) - NAMES} more" if len(spec.choices) > NAMES else ""
    named = ", ".join(spec.choices[:NAMES]) + more
    return f"shares of {named}" if spec.kind == "simplex" else f"one of {named}"
