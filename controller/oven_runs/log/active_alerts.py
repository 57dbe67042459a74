"""Track the active alerts of each agent, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, RunEnded, RunStarted

MAX_PER_AGENT: Final = 8
"""Maximum number of active alerts per agent. The agent must clear one before it can raise another."""
MAX_AGENTS: Final = 64
"""Maximum number of agents with alerts. A monitor shows this many agents."""
MAX_CHANGES: Final = 4
"""Maximum number of alerts that an agent may raise or clear per tick, so that its alerts cannot crowd out others."""


@dataclass
class ActiveAlerts:
    """The active alerts of all agents. Pass the log's events to `feed` in order."""

    by_agent: dict[str, dict[str, Alert]] = field(default_factory=dict)
    """Agent → symptom → the alert that raised it. Agents without alerts are absent."""
    _training_id: str = ""  # the alerts belong to this training
    _has_ended: bool = False
    _changes: dict[str, int] = field(default_factory=dict)  # agent → changes since the last observation

    def feed(self, event: Event) -> Alert | None:
        """Add the next event. Return its alert if that changes the active alerts, and None otherwise."""
        match event.body:
            case Alert() as body:
                return body if self._update(event.author, body) else None
            case Observation():
                self._changes.clear()
            case RunStarted() as body:
                if body.training != self._training_id:
                    self.by_agent.clear()
                self._training_id, self._has_ended = body.training, False
            case RunEnded():
                self._has_ended = True
            case AgentStatus(state="left") if not self._has_ended:
                self.by_agent.pop(event.author, None)  # only this agent could clear them
        return None

    def active(self) -> list[tuple[str, Alert]]:
        """Return (agent, alert) for all active alerts. Each agent's alerts are in the order in which it raised them."""
        return [(agent, alert) for agent, alerts in self.by_agent.items() for alert in alerts.values()]

    def _update(self, author: str, alert: Alert) -> bool:
        """Add or remove an alert. Return False if that changes nothing or would exceed a limit."""
        alerts = dict(self.by_agent.get(author, {}))
        is_raised = alert.state == "raised"
        if is_raised == (alert.symptom in alerts):
            return False  # the alert was raised already, or is cleared without having been raised
        if self._changes.get(author, 0) >= MAX_CHANGES or (is_raised and len(alerts) >= MAX_PER_AGENT):
            return False
        if not alerts and len(self.by_agent) >= MAX_AGENTS:
            return False
        self._changes[author] = self._changes.get(author, 0) + 1
        if is_raised:
            alerts[alert.symptom] = alert
        else:
            del alerts[alert.symptom]
        if alerts:
            self.by_agent[author] = alerts
        else:
            del self.by_agent[author]
        return True


def alert_text(alert: Alert) -> str:
    """Return the alert as a sentence."""
    if alert.state == "cleared":
        return f"{alert.symptom} cleared: {alert.metric} is {alert.value:.3g}"
    reason = f"; {alert.reason}" if alert.reason else ""
    if not math.isfinite(alert.value - alert.expected) or alert.value == alert.expected:
        return f"{alert.symptom}: {alert.metric} is {alert.value:.3g}{reason}"
    side = "below" if alert.value < alert.expected else "above"
    return f"{alert.symptom}: {alert.metric} {alert.value:.3g} is {side} {alert.expected:.3g}{reason}"
