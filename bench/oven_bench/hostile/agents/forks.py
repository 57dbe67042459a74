"""An agent that starts programs and never ends them."""

from __future__ import annotations

import subprocess

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window

EVERY = 5
"""Ticks between two programs."""
MOST = 20
"""Most programs that it starts, so that the machine survives it."""


class Forks(Agent):
    """Starts a program every five ticks, at most twenty, each in its own session, so that a signal to the agent's group
    does not reach it. Each ends by itself after an hour."""

    moves = ("optimizer.lr_scale",)

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def vote(self, window: Window) -> None:
        if len(self._started) < MOST and window.tick >= EVERY * len(self._started):
            self._started.append(subprocess.Popen(["sleep", "3600"], start_new_session=True))
