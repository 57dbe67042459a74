"""An agent that leaks memory."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window

TICK_BYTES = 8 * 2**20
"""Bytes that it leaks per vote, enough to reach a limit of some hundred MB within a short run."""


class Leaks(Agent):
    """Allocates 8 MiB at each vote, writes to all of it, and keeps it."""

    moves = ("optimizer.lr_scale",)

    def __init__(self) -> None:
        self._leaked: list[bytes] = []

    def vote(self, window: Window) -> None:
        self._leaked.append(b"\xff" * TICK_BYTES)
