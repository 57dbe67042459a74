"""Floods of messages: agents that log far more than any would mean to are found, and lose their keys.

The votes stream keeps a flood from delaying the others; it does not keep it out of the log, where every word stays.
An agent may say FREE messages at once and PER_TICK for each tick of the run. Who exceeds that loses its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, Vote

FREE: Final = 64
"""Messages that an agent may be ahead of its share: a shipped one says at most a dozen while a tick lasts."""
PER_TICK: Final = 4
"""Messages of one agent that a tick pays for: in lockstep, a status for it, and one for each of some ballots."""


@dataclass
class Floods:
    """Feed it the log's events as they come; `found` is called with an agent's name, once."""

    found: Callable[[str], None]
    _tick: int = 0
    _ahead: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Agent → (messages ahead of its share, at which tick)."""
    _told: set[str] = field(default_factory=set)

    def hear(self, event: Event) -> None:
        if isinstance(event.body, Observation):
            self._tick = max(self._tick, event.body.tick)
        elif isinstance(event.body, Vote | AgentStatus | Alert) and event.author not in self._told:
            ahead, tick = self._ahead.get(event.author, (0, self._tick))
            ahead = max(0, ahead - PER_TICK * (self._tick - tick)) + 1
            self._ahead[event.author] = ahead, self._tick
            if ahead > FREE:
                self._told.add(event.author)
                self.found(event.author)
