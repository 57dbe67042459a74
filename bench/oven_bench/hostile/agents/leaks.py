"""An agent whose author keeps everything."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window

TICK_BYTES = 8 * 2**20
"""Bytes that it keeps per vote: a limit of some hundred MB is reached within a short run."""


class Leaks(Agent):
    """Holds on to eight more MiB with each vote, and has written to all of them."""

    moves = ("optimizer.lr_scale",)

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def vote(self, window: Window) -> None:
        self._kept.append(b"\xff" * TICK_BYTES)
