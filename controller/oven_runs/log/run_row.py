"""One run as a list of runs shows it: state, step, target metric, decisions, alerts, age and pace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

STALLED_S: Final = 15.0
"""Seconds without an event, or ten times the pace where that is longer, after which a live run counts as stalled. The
monitor's own limit."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the list. Counts are None while its log is still being read, and where it cannot be."""

    run: str
    recipe: str = ""
    drill: str = ""
    created: str = ""
    """RFC 3339, UTC."""
    status: str = "interrupted"
    """As its folder has it: "running", or how it ended."""
    step: int | None = None
    max_steps: int | None = None
    progress: float = 0.0
    target: str = ""
    """The metric that says how the run is doing; empty where it has none."""
    first: float | None = None
    now: float | None = None
    """The target's first and newest value; None where it was not measured, or is not a number."""
    adopted: int | None = None
    rejected: int | None = None
    advised: tuple[str, ...] = ()
    """Ids of what a person may still approve."""
    held: str = ""
    ended: str = ""
    """The learner's last word and its detail; empty while there is none."""
    malformed: int = 0
    """Events that count for nothing, and lines that are none."""
    not_applied: int = 0
    """Receipts of changes that did not take effect."""
    pace_s: float | None = None
    """Seconds between observations."""
    last: str = ""
    """When the newest event was stored, RFC 3339; empty where there is none."""
    fault: str = ""
    """Why its log cannot be read."""
    place: str = ""
    """The address of a run on another machine; empty for one of this home."""
    whole: bool = False
    """Whether all of the log was looked at."""

    def silent_s(self, now: datetime) -> float | None:
        """Seconds since the newest event; None where there is none."""
        return max(0.0, (now - datetime.fromisoformat(self.last)).total_seconds()) if self.last else None

    def age_s(self, now: datetime) -> float | None:
        """Seconds since it was created; None where that is not known."""
        try:
            return max(0.0, (now - datetime.fromisoformat(self.created)).total_seconds())
        except (ValueError, TypeError):
            return None

    def state(self, now: datetime) -> str:
        """In one word: `live`, `held`, `stalled` or `waiting` while it runs, else how it ended."""
        if self.status != "running":
            return self.status
        if self.ended:
            return "ending"
        if self.held:
            return "held"
        silent = self.silent_s(now)
        if silent is None:
            return "waiting"
        return "stalled" if silent > max(STALLED_S, 10 * (self.pace_s or 0.0)) else "live"

    def alerts(self, now: datetime) -> list[str]:
        """What a person should look at, the most urgent first; each a few words."""
        state, found = self.state(now), []
        if self.fault:
            found.append(f"not reached: {self.fault}" if self.place else f"log not readable: {self.fault}")
        if state == "failed" or (self.ended.startswith("failed") and self.status != "running"):
            found.append(self.ended or "failed")
        if state == "held":
            found.append(f"held: {self.held}")
        if state == "stalled":
            found.append("nothing heard of it")
        if self.status == "running":
            found += [f"advice waits: approve {id_}" for id_ in self.advised]
        if self.target and self.now is None and self.step and self.whole:
            found.append(f"{self.target} is not a number")
        if self.malformed:
            found.append(f"{self.malformed} malformed")
        if self.not_applied:
            found.append(f"{self.not_applied} not applied")
        return found
