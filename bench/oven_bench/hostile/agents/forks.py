"""An agent that starts programs and never looks after them."""

from __future__ import annotations

import subprocess

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window

EVERY = 5
"""Ticks between two programs."""
MOST = 20
"""Programs that it starts at most, so that a test machine survives it."""


class Forks(Agent):
    """Starts a program every five ticks, twenty at most, each in its own session: what ends the agent's own group
    does not reach them. They end by themselves after an hour."""

    moves = ("optimizer.lr_scale",)

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def vote(self, window: Window) -> None:
        if len(self._started) < MOST and window.tick >= EVERY * len(self._started):
            self._started.append(subprocess.Popen(["sleep", "3600"], start_new_session=True))
