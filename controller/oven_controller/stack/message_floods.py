"""Detects agents that flood the log.

The votes stream keeps a flood from delaying other agents, but every message stays in the log. An agent may send
MESSAGES_PER_TICK messages per tick, and MAX_EXCESS more in a burst. An agent that exceeds this loses its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, Vote

MAX_EXCESS: Final = 64
"""Maximum number of messages beyond MESSAGES_PER_TICK. An installed agent sends at most a dozen messages per tick."""
MESSAGES_PER_TICK: Final = 4
"""Messages per tick that do not add to the excess: in lockstep one status, and one vote on each of a few ballots."""


@dataclass
class FloodDetector:
    """Reads new log events and reports each flooding agent once."""

    report: Callable[[str], None]
    """Called with the agent's name."""
    _tick: int = 0
    _excess: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each agent, the number of messages beyond MESSAGES_PER_TICK and the tick of that count."""
    _reported_agents: set[str] = field(default_factory=set)

    def on_event(self, event: Event) -> None:
        if isinstance(event.body, Observation):
            self._tick = max(self._tick, event.body.tick)
        elif isinstance(event.body, Vote | AgentStatus | Alert) and event.author not in self._reported_agents:
            excess, tick = self._excess.get(event.author, (0, self._tick))
            excess = max(0, excess - MESSAGES_PER_TICK * (self._tick - tick)) + 1
            self._excess[event.author] = excess, self._tick
            if excess > MAX_EXCESS:
                self._reported_agents.add(event.author)
                self.report(event.author)
