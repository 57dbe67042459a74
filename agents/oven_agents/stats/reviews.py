"""Reviews: an agent's vote on another agent's ballot, from the state of its own signal.

The confidences rank votes and are not measured. If the objective or held-out quality has got worse, the confidence is
`firm_confidence`, so the review may be the confident one of two votes. A gauge that has got worse, such as a gradient
norm, gives `tentative_confidence`, and so does a signal that only permits a change. Otherwise a noisy gauge could carry
an uncertain proposal while neither the objective nor held-out quality gets worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence, tentative_confidence
from oven_agents.stats.health import Health
from oven_agents.stats.objective import held_out_metric, objective
from oven_core.mesh.actuator_values import direction
from oven_core.protocol.messages import BallotOpened, Vote

OBJECTION_CONFIDENCE = 0.7
"""Confidence of a vote against a harder push of a run that gets worse: a veto by default."""
DOUBT_CONFIDENCE = 0.6
"""Confidence of a vote against a remedy, or another direction, for a run that improves: too low for a veto by
default."""

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


def review_change(ballot: BallotOpened, window: Window, read_health: Callable[[Window], Health | None]) -> Vote | None:
    """Return a vote on the ballot from the state of one signal, or None to abstain.

    A signal that gets worse speaks for a remedy or another direction, and against a harder push. A signal that does
    not get worse permits a push, and a steady one permits another direction. Held-out quality that improves speaks
    against a remedy or another direction. Other signals that improve do not: a rising reward may be a sign of the
    fault."""
    effect = effect_of(ballot, window)
    health = read_health(window) if effect is not None else None
    if health is None:
        return None
    is_worse = health.state == "worse"
    held_out = held_out_metric(window.run)
    quality_metrics = {objective(window.run).name, held_out.name if held_out else ""}
    is_firm = is_worse and not quality_metrics.isdisjoint(health.metrics)
    stance, confidence = "for", firm_confidence(window.run) if is_firm else tentative_confidence(window.run)
    if effect == "pushes" and is_worse:
        stance, confidence = "against", OBJECTION_CONFIDENCE
    elif effect == "protects" and health.state == "steady":
        return None
    elif effect != "pushes" and health.state == "better":
        if held_out is None or held_out.name not in health.metrics:
            return None
        stance, confidence = "against", DOUBT_CONFIDENCE
    return window.answer(ballot, stance, confidence=confidence, why=health.text, reads=health.metrics)
