"""Summarise a run in one row for the list of runs: state, progress, target metric, decisions and alerts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from oven_runs.log.run_summary import RunSummary

STALLED_S: Final = 15.0
"""Seconds without an event after which a live run counts as stalled. In slow runs the limit is ten times `pace_s`."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the list. Values from its log keep their defaults until the log has been read."""

    run: str
    recipe: str = ""
    drill: str = ""
    created: str = ""
    """Creation time, RFC 3339 in UTC."""
    status: str = "interrupted"
    """The status in the run's folder: "running", or how the run ended."""
    step: int | None = None
    max_steps: int | None = None
    progress: float = 0.0
    target: str = ""
    """The metric that shows how well the run is doing; empty if there is none."""
    first_value: float | None = None
    newest_value: float | None = None
    """The target's newest value. Each of the two values is None if it was not measured or is not finite."""
    adopted: int | None = None
    rejected: int | None = None
    would_set: int = 0
    """Number of proposals that were rejected only because autonomy is `observe`."""
    advised: tuple[str, ...] = ()
    """Ids of the advice that an operator can still approve."""
    held: str = ""
    """The reason why the run is held; empty if it is not."""
    ended: str = ""
    """The reason and detail from the learner's RunEnded; empty until the run has ended."""
    malformed: int = 0
    """Number of invalid events and of lines that are not events."""
    not_applied: int = 0
    """Number of changes that did not take effect, according to their receipts."""
    pace_s: float | None = None
    """Median seconds between observations."""
    newest_time: str = ""
    """Time of the newest event, RFC 3339; empty if there is none."""
    fault: str = ""
    """Why the log is unreadable; empty if it is readable."""
    location: str = ""
    """The address of a run on another machine; empty for a run in this home."""
    is_complete: bool = False
    """Whether the whole log has been read."""

    def silent_s(self, now: datetime) -> float | None:
        """Return the seconds since the newest event, or None if there is none."""
        return max(0.0, (now - datetime.fromisoformat(self.newest_time)).total_seconds()) if self.newest_time else None

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since the run was created, or None if unknown."""
        try:
            return max(0.0, (now - datetime.fromisoformat(self.created)).total_seconds())
        except (ValueError, TypeError):
            return None

    def state(self, now: datetime) -> str:
        """Return the state: live, held, stalled, waiting or ending while the run is up, and afterwards how it ended."""
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
        """Return phrases for problems that need attention, most urgent first. Agents' `Alert` messages are omitted."""
        state, alerts = self.state(now), []
        if self.fault:
            alerts.append(f"unreachable: {self.fault}" if self.location else f"log not readable: {self.fault}")
        if state == "failed" or (self.ended.startswith("failed") and self.status != "running"):
            alerts.append(self.ended or "failed")
        if state == "held":
            alerts.append(f"held: {self.held}")
        if state == "stalled":
            alerts.append("no new events")
        if self.status == "running":
            alerts += [f"pending advice: approve {id_}" for id_ in self.advised]
        if self.target and self.newest_value is None and self.step and self.is_complete:
            alerts.append(f"{self.target} is not a number")
        if self.malformed:
            alerts.append(f"{self.malformed} malformed events")
        if self.not_applied:
            alerts.append(f"{self.not_applied} changes not applied")
        return alerts


def add_summary(row: RunRow, summary: RunSummary) -> RunRow:
    """Return the row with the data from a summary of the run's log."""
    target, ended = summary.target() or "", summary.ended
    return replace(
        row,
        step=summary.step if summary.started else None,
        max_steps=summary.max_steps,
        progress=summary.progress,
        target=target,
        first_value=finite_or_none(summary.first_values.get(target)),
        newest_value=finite_or_none(summary.metrics.get(target)),
        adopted=summary.adopted,
        rejected=summary.rejected,
        would_set=summary.would_set,
        advised=tuple(advice.id for advice in summary.advised.values() if not summary.has_lapsed(advice)),
        held=summary.hold_reason,
        ended=(f"{ended.reason}: {ended.detail}" if ended.detail else ended.reason) if ended else "",
        malformed=summary.malformed,
        not_applied=sum(count for status, count in summary.receipts.items() if status not in ("applied", "noop")),
        newest_time=summary.last_time.astimezone(UTC).isoformat() if summary.last_time else "",
    )


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None
