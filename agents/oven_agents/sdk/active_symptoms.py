"""Turns an agent's current symptoms into alerts: `raised` when a symptom begins, and `cleared` when it ends."""

from __future__ import annotations

from collections.abc import Iterable

from oven_agents.sdk.window import Window
from oven_core.protocol.alerts import Alert

MAX_ACTIVE = 8
"""Maximum number of active symptoms per agent. More would usually share one cause, and displays keep no more."""


class ActiveSymptoms:
    """The symptoms that one agent has raised and not yet cleared."""

    def __init__(self) -> None:
        self._active: dict[str, Alert] = {}

    def changes(self, current: Iterable[Alert], window: Window) -> list[Alert]:
        """Return the alerts to publish, given all symptoms of this tick. Cleared alerts come first, with the newest
        value of the metric. Symptoms beyond MAX_ACTIVE are dropped. Raises TypeError if an entry is not an alert."""
        present: dict[str, Alert] = {}
        for alert in current:
            if not isinstance(alert, Alert):
                raise TypeError(f"alerts returned a {type(alert).__name__}; expected alerts from window.alert")
            if alert.state == "raised" and len(present) < MAX_ACTIVE:
                present.setdefault(alert.symptom, alert)
        cleared = [_clear_alert(alert, window) for symptom, alert in self._active.items() if symptom not in present]
        return [*cleared, *(alert for symptom, alert in present.items() if symptom not in self._active)]

    def record(self, alert: Alert) -> None:
        """Record a published alert, including those from before a restart. Call in log order."""
        if alert.state == "raised" and (alert.symptom in self._active or len(self._active) < MAX_ACTIVE):
            self._active[alert.symptom] = alert
        elif alert.state == "cleared":
            self._active.pop(alert.symptom, None)


def _clear_alert(alert: Alert, window: Window) -> Alert:
    value = next(iter(window.series(alert.metric, last=1)), alert.value)
    return alert.model_copy(update={"state": "cleared", "tick": window.tick, "value": value, "reason": ""})
