"""Detects agents that flood the log.

The votes stream keeps a flood from delaying other agents, but every message stays in the log. An agent may send FREE
messages at once, plus PER_TICK per tick. An agent that exceeds this loses its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, Vote

FREE: Final = 64
"""Maximum messages beyond an agent's share. A shipped agent sends at most a dozen per tick."""
PER_TICK: Final = 4
"""An agent's share per tick: in lockstep one status, and one vote for each of a few ballots."""


@dataclass
class FloodDetector:
    """Reads new log events and reports each agent that floods the log once."""

    report: Callable[[str], None]
    """Called with the agent's name."""
    _tick: int = 0
    _ahead: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each agent, the messages beyond its share and the tick of that count."""
    _reported: set[str] = field(default_factory=set)

    def hear(self, event: Event) -> None:
        if isinstance(event.body, Observation):
            self._tick = max(self._tick, event.body.tick)
        elif isinstance(event.body, Vote | AgentStatus | Alert) and event.author not in self._reported:
            ahead, tick = self._ahead.get(event.author, (0, self._tick))
            ahead = max(0, ahead - PER_TICK * (self._tick - tick)) + 1
            self._ahead[event.author] = ahead, self._tick
            if ahead > FREE:
                self._reported.add(event.author)
                self.report(event.author)
