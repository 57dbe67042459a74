"""Reviews: an agent's vote on another agent's ballot, from the state of its own signal."""

from __future__ import annotations

from typing import Literal, TypeAlias

from oven_agents.sdk.window import Window
from oven_agents.stats.health import Health
from oven_agents.stats.objective import held_out_metric
from oven_core.mesh.actuator_values import direction
from oven_core.protocol.messages import BallotOpened, Vote

SUPPORT_CONFIDENCE = 0.65
"""Confidence of a vote for a remedy, or another direction, if the signal has got worse."""
PERMISSION_CONFIDENCE = 0.55
"""Confidence of a vote `for` from a signal that only does not speak against the change."""
OBJECTION_CONFIDENCE = 0.7
"""Confidence of a vote against a change that would make a worsening run worse: a veto by default."""
DOUBT_CONFIDENCE = 0.6
"""Confidence of a vote against a remedy for a run that improves: it counts, but is not a veto."""

Effect: TypeAlias = Literal["pushes", "protects", "redirects"]

_PUSHES_UP = ("optimizer.lr_scale", "grad.clip", "grpo.epsilon", "rloo.epsilon")
_PROTECTS_UP = ("grpo.beta", "rloo.beta", "dpo.beta")
_PROTECTS = ("run.rollback", "run.stop")
_IGNORED = ("run.evaluate", "run.checkpoint", "run.best", "run.hold")


def effect_of(ballot: BallotOpened, window: Window) -> Effect | None:
    """Return whether the proposed change pushes the training harder, protects it, or gives it another direction.

    Return None for a change that does not affect the training at once."""
    name = ballot.actuator
    if name in _IGNORED or name not in window.knobs:
        return None
    if name in _PROTECTS:
        return "protects"
    rises = direction(window.knobs[name].value, ballot.proposal) == "up"
    if name.startswith(_PUSHES_UP):
        return "pushes" if rises else "protects"
    if name.startswith(_PROTECTS_UP):
        return "protects" if rises else "pushes"
    return "redirects"


def review_change(ballot: BallotOpened, window: Window, health: Health | None) -> Vote | None:
    """Return a vote on the ballot from the state of one signal, or None to abstain.

    A signal that gets worse speaks for a remedy or another direction, and against a harder push. A signal that does
    not get worse leaves room for a push, and a steady one for another direction. Held-out quality that improves speaks
    against a remedy. Other signals that improve do not: a rising reward may be a sign of the fault."""
    effect = effect_of(ballot, window)
    if health is None or effect is None:
        return None
    stance, confidence = "for", SUPPORT_CONFIDENCE if health.state == "worse" else PERMISSION_CONFIDENCE
    if effect == "pushes" and health.state == "worse":
        stance, confidence = "against", OBJECTION_CONFIDENCE
    elif effect == "protects" and health.state == "steady":
        return None
    elif effect != "pushes" and health.state == "better":
        metric = held_out_metric(window.run)
        if metric is None or metric.name not in health.metrics:
            return None
        stance, confidence = "against", DOUBT_CONFIDENCE
    return window.answer(ballot, stance, confidence=confidence, why=health.text, reads=health.metrics)
