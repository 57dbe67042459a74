"""Symptoms that agents raised and did not clear, by agent: a fold over the log in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Observation, RunEnded, RunStarted

EACH: Final = 8
"""Symptoms of one agent that stand at a time; it can raise no more before it clears one."""
AGENTS: Final = 64
"""Agents whose alerts are kept: as many as a monitor shows."""
NEWS: Final = 4
"""Changes of one agent that a tick pays for, and that are shown. An agent that changes its mind more often is not heard
until the next tick, and takes no one else's place."""


@dataclass
class StandingAlerts:
    """Feed it the log's events in order; `feed` returns an alert that says something new, else None."""

    by_agent: dict[str, dict[str, Alert]] = field(default_factory=dict)
    """Agent → symptom → the alert that raised it. An agent without any is absent."""
    _training: str = ""
    _ended: bool = False
    _said: dict[str, int] = field(default_factory=dict)
    """Agent → changes since the last observation."""

    def feed(self, event: Event) -> Alert | None:
        match event.body:
            case Alert() as body:
                return body if self._take(event.author, body) else None
            case Observation():
                self._said.clear()
            case RunStarted() as body:
                if body.training != self._training:
                    self.by_agent.clear()
                self._training, self._ended = body.training, False
            case RunEnded():
                self._ended = True
            case AgentStatus(state="left") if not self._ended:
                self.by_agent.pop(event.author, None)  # no one would clear them; at a run's end they stand
            case _:
                pass
        return None

    def standing(self) -> list[tuple[str, Alert]]:
        """(agent, alert) of all that stand, in the order in which they were raised by each."""
        return [(agent, alert) for agent, own in self.by_agent.items() for alert in own.values()]

    def copy(self) -> StandingAlerts:
        """One that stays as it is while this one continues."""
        by_agent = {agent: dict(own) for agent, own in self.by_agent.items()}
        return replace(self, by_agent=by_agent, _said=dict(self._said))

    def _take(self, author: str, alert: Alert) -> bool:
        own = self.by_agent.get(author, {})
        raised = alert.state == "raised"
        if raised == (alert.symptom in own):
            return False  # said again, or never raised
        if self._said.get(author, 0) >= NEWS or (raised and len(own) >= EACH):
            return False
        if not own and len(self.by_agent) >= AGENTS:
            return False
        self._said[author] = self._said.get(author, 0) + 1
        own = {**own, alert.symptom: alert} if raised else {s: a for s, a in own.items() if s != alert.symptom}
        if own:
            self.by_agent[author] = own
        else:
            self.by_agent.pop(author, None)
        return True


def alert_text(alert: Alert) -> str:
    """An alert in words."""
    side = "below" if alert.value < alert.expected else "above"
    if alert.state == "cleared":
        return f"{alert.symptom} cleared: {alert.metric} is {alert.value:.3g}"
    why = f"; {alert.reason}" if alert.reason else ""
    return f"{alert.symptom}: {alert.metric} {alert.value:.3g} is {side} {alert.expected:.3g}{why}"
