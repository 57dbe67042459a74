"""Runs of the mesh in which one agent decides alone on the rate and the others are newcomers."""

from __future__ import annotations

from typing import Any

from tests.support.mesh_log import LR, Log

from oven_core.protocol.messages import Outcome

DEFAULTS: dict[str, Any] = {"newcomers": "probation", "harm_charge": 0.6, "reversals": 3}


def run(*agents: str, **rules: Any) -> Log:
    """`lr` is trusted, and decides alone on the rate, by a grant of the settings. The other agents are newcomers."""
    log = Log()
    log.start(**{**DEFAULTS, "trusted": {"lr": ("*",)}, "alone": {"lr": (LR,)}, **rules})
    for agent in ("lr", *agents):
        log.join(agent)
    log.tick(9, loss=1.0)
    return log


def quiet(log: Log, *agents: str) -> None:
    for agent in agents:
        log.vote(agent, "abstain")


def charges(log: Log) -> list[Outcome]:
    return [outcome for outcome in log.outcomes if outcome.charge]
