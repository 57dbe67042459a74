"""Of an agent's symptoms those that began and ended: what of "this is so now" has to be said."""

from __future__ import annotations

from collections.abc import Iterable

from oven_agents.sdk.window import Window
from oven_core.protocol.alerts import Alert

STANDING = 8
"""Symptoms that one agent may have raised at a time: readers keep as many, and who sees more at once sees one thing."""


class AlertEdges:
    """What one agent has raised and not cleared."""

    def __init__(self) -> None:
        self._standing: dict[str, Alert] = {}

    def changed(self, now: Iterable[Alert], window: Window) -> list[Alert]:
        """What has to be said, given all symptoms of now; cleared ones first, with their metric's newest value. Of more
        than STANDING the last are left out. Raises TypeError for anything but an alert."""
        seen: dict[str, Alert] = {}
        for alert in now:
            if not isinstance(alert, Alert):
                raise TypeError(f"alerts returned a {type(alert).__name__}; it returns what window.alert makes")
            if alert.state == "raised" and len(seen) < STANDING:
                seen.setdefault(alert.symptom, alert)
        ended = [_cleared(was, window) for symptom, was in self._standing.items() if symptom not in seen]
        return [*ended, *(alert for symptom, alert in seen.items() if symptom not in self._standing)]

    def take(self, said: Iterable[Alert]) -> None:
        """What was said."""
        for alert in said:
            self.recall(alert)

    def recall(self, alert: Alert) -> None:
        """What it said before it started again, in the log's order."""
        if alert.state == "raised" and (alert.symptom in self._standing or len(self._standing) < STANDING):
            self._standing[alert.symptom] = alert
        elif alert.state == "cleared":
            self._standing.pop(alert.symptom, None)


def _cleared(was: Alert, window: Window) -> Alert:
    value = next(iter(window.series(was.metric, last=1)), was.value)
    return was.model_copy(update={"state": "cleared", "tick": window.tick, "value": value, "reason": ""})
