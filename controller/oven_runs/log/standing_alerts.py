"""Track each agent's active alerts over the log, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, RunEnded, RunStarted

EACH: Final = 8
"""Maximum raised symptoms per agent. The agent must clear one before it can raise another."""
AGENTS: Final = 64
"""Maximum agents with alerts: as many as a monitor shows."""
NEWS: Final = 4
"""Maximum changes per agent and tick, so that an agent cannot crowd out others."""


@dataclass
class StandingAlerts:
    """The active alerts of all agents. Feed it the log's events in order."""

    by_agent: dict[str, dict[str, Alert]] = field(default_factory=dict)
    """Agent → symptom → the alert that raised it. Agents without alerts are absent."""
    _training: str = ""
    _ended: bool = False
    _changes: dict[str, int] = field(default_factory=dict)
    """Agent → changes since the last observation."""

    def feed(self, event: Event) -> Alert | None:
        """Add the next event. Returns an alert that raises or clears a symptom, otherwise None."""
        match event.body:
            case Alert() as body:
                return body if self._take(event.author, body) else None
            case Observation():
                self._changes.clear()
            case RunStarted() as body:
                if body.training != self._training:
                    self.by_agent.clear()
                self._training, self._ended = body.training, False
            case RunEnded():
                self._ended = True
            case AgentStatus(state="left") if not self._ended:
                self.by_agent.pop(event.author, None)  # no agent would clear them; at a run's end they stay
            case _:
                pass
        return None

    def standing(self) -> list[tuple[str, Alert]]:
        """Return (agent, alert) of all raised symptoms, in each agent's order."""
        return [(agent, alert) for agent, own in self.by_agent.items() for alert in own.values()]

    def _take(self, author: str, alert: Alert) -> bool:
        own = self.by_agent.get(author, {})
        raised = alert.state == "raised"
        if raised == (alert.symptom in own):
            return False  # a repetition, or never raised
        if self._changes.get(author, 0) >= NEWS or (raised and len(own) >= EACH):
            return False
        if not own and len(self.by_agent) >= AGENTS:
            return False
        self._changes[author] = self._changes.get(author, 0) + 1
        own = {**own, alert.symptom: alert} if raised else {s: a for s, a in own.items() if s != alert.symptom}
        if own:
            self.by_agent[author] = own
        else:
            self.by_agent.pop(author, None)
        return True


def alert_text(alert: Alert) -> str:
    """Return the alert as a sentence."""
    side = "below" if alert.value < alert.expected else "above"
    if alert.state == "cleared":
        return f"{alert.symptom} cleared: {alert.metric} is {alert.value:.3g}"
    why = f"; {alert.reason}" if alert.reason else ""
    return f"{alert.symptom}: {alert.metric} {alert.value:.3g} is {side} {alert.expected:.3g}{why}"
