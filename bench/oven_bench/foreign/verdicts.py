"""What the pairs of a cell say together: is it the same training, within noise, better or WORSE with the controller?

A gain is the final held-out metric with the controller minus the control's, positive where the controller's is better.
Differences count as noise up to twice the mean gain's standard error, or up to half of the range of the controls'
finals over the seeds, whichever is larger. A run that raised or diverged has no final: it is worse than any finite one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

Verdict = Literal["same", "within noise", "better", "WORSE", "one seed", "both diverged"]
"""One seed has no noise to hold a difference against, so that it is neither better nor worse."""


@dataclass(frozen=True)
class Played:
    """One seed of a cell, with the controller and without it."""

    cell: str
    start: str
    steps: int
    changes: int
    better: str
    """Which way the metric is better: up or down."""
    controlled: float | None
    """The final held-out metric; None where the run raised or diverged."""
    alone: float | None
    receipts: int = 0
    """Changes of the rate that were held against the rate used."""
    mismatches: int = 0
    """Of them, those that the rate used did not match."""
    same_place: int = 0
    """Most rollbacks to one step without a better held-out reading since."""

    @property
    def gain(self) -> float | None:
        if self.controlled is None or self.alone is None:
            return None
        return (self.controlled - self.alone) * (-1 if self.better == "down" else 1)


@dataclass(frozen=True)
class Row:
    """A cell from one start. Figures are None where no pair, or one alone, is finite."""

    start: str
    cell: str
    seeds: int
    changes: int
    gain: float | None
    error: float | None
    """The mean gain's standard error."""
    noise: float | None
    """Up to where a mean gain counts as noise, either way."""
    lost: int
    """Seeds on which only the run with the controller has no final metric."""
    saved: int
    """Seeds on which only the control has none."""
    verdict: Verdict

    def table_row(self) -> dict[str, object]:
        apart = [f"{count} {word}" for count, word in ((self.lost, "lost"), (self.saved, "saved")) if count]
        return {
            "start": self.start,
            "cell": self.cell,
            "seeds": self.seeds,
            "changes": self.changes,
            "mean gain": _rounded(self.gain),
            "standard error": _rounded(self.error),
            "noise": _rounded(self.noise),
            "verdict": self.verdict + (f" ({', '.join(apart)})" if apart else ""),
        }


def rows(played: Iterable[Played]) -> list[Row]:
    """In the order in which starts and cells first come."""
    together: dict[tuple[str, str], list[Played]] = {}
    for one in played:
        together.setdefault((one.start, one.cell), []).append(one)
    return [row(group) for group in together.values()]


def row(played: Sequence[Played]) -> Row:
    """Of the seeds of one cell from one start."""
    gains = [one.gain for one in played if one.gain is not None]
    controls = [one.alone for one in played if one.alone is not None]
    mean = fmean(gains) if gains else None
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
    noise = None if error is None else max(2 * error, (max(controls) - min(controls)) / 2)
    lost = sum(one.controlled is None and one.alone is not None for one in played)
    saved = sum(one.controlled is not None and one.alone is None for one in played)
    return Row(
        played[0].start,
        played[0].cell,
        len(played),
        sum(one.changes for one in played),
        mean,
        error,
        noise,
        lost,
        saved,
        _verdict(played, mean, noise, lost, saved),
    )


def _verdict(played: Sequence[Played], mean: float | None, noise: float | None, lost: int, saved: int) -> Verdict:
    if lost:
        return "WORSE"
    if all(one.changes == 0 and one.controlled == one.alone for one in played):
        return "both diverged" if mean is None else "same"
    if mean is not None and noise is not None and mean < -noise:
        return "WORSE"  # what it saved on one seed does not make up for what it cost on the others
    if saved:
        return "better"
    if mean is None:
        return "both diverged"
    if noise is None:
        return "one seed"
    return "better" if mean > noise else "within noise"


def totals(played: Sequence[Played]) -> dict[str, object]:
    """Counts by start, then over all runs. Steps and changes are those of runs that ended."""
    found = rows(played)
    figures: dict[str, object] = {}
    for start in dict.fromkeys(row.start for row in found):
        verdicts = [row.verdict for row in found if row.start == start]
        ended = [one for one in played if one.start == start and one.controlled is not None]
        changes, steps = sum(one.changes for one in ended), sum(one.steps for one in ended)
        figures |= {
            f"{start}_cells": len(verdicts),
            f"{start}_worse": verdicts.count("WORSE"),
            f"{start}_better": verdicts.count("better"),
            f"{start}_one_seed": verdicts.count("one seed"),
            f"{start}_changes_per_1000_steps": round(1000 * changes / steps, 2) if steps else None,
        }
    return figures | {
        "rate_changes_checked": sum(one.receipts for one in played),
        "rate_changes_not_matched": sum(one.mismatches for one in played),
        "most_rollbacks_to_one_step": max((one.same_place for one in played), default=0),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
