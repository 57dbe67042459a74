"""What the learner announced while a run was under way, in one sentence each: for lines, the monitor and `explain`."""

from __future__ import annotations

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import ActuatorSpec
from oven_runs.log.run_summary import text

NAMES = 8
"""Choices that a sentence lists."""


def announced(body: ActuatorAnnounced) -> str:
    """Which actuator, what it can be set to, and its value now."""
    spec = body.actuator
    now = "" if spec.value is None else f", now {text(spec.value)}"
    return f"announced {spec.name} at step {body.step}: {_range(spec)}{now}"


def injected(body: PromptsInjected) -> str:
    """How many prompts came from whom and why, and what had to make room."""
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
