"""The verdict on a cell over its seeds: the same training, within noise, better or WORSE with the controller.

A gain is the final held-out metric with the controller minus the control's, with a sign such that more is better. A
difference counts as noise up to the larger of twice the mean gain's standard error and half the range of the controls.
A run that raised or diverged has no final metric: it is worse than any finite one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

Verdict = Literal["same", "within noise", "better", "WORSE", "one seed", "both diverged"]
"""One seed has no noise to compare with, so it is neither better nor worse."""


@dataclass(frozen=True)
class SeedResult:
    """One seed of a cell, with the controller and without it."""

    cell: str
    start: str
    steps: int
    changes: int
    better: str
    """Which direction of the metric is better: up or down."""
    controlled: float | None
    """The final held-out metric; None if the run raised or diverged."""
    alone: float | None
    rates_checked: int = 0
    """Changes of the learning rate that were compared with the rate used."""
    rates_wrong: int = 0
    same_place: int = 0
    """Most rollbacks to one step without a better held-out reading in between."""

    @property
    def gain(self) -> float | None:
        if self.controlled is None or self.alone is None:
            return None
        return (self.controlled - self.alone) * (-1 if self.better == "down" else 1)


@dataclass(frozen=True)
class CellResult:
    """A cell from one start. Figures are None if they need more finite pairs than there are."""

    start: str
    cell: str
    seeds: int
    changes: int
    gain: float | None
    error: float | None
    """The mean gain's standard error."""
    noise: float | None
    """A mean gain up to this size, either way, counts as noise."""
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


def cell_results(results: Iterable[SeedResult]) -> list[CellResult]:
    """One result per start and cell, in the order in which they first come."""
    groups: dict[tuple[str, str], list[SeedResult]] = {}
    for result in results:
        groups.setdefault((result.start, result.cell), []).append(result)
    return [cell_result(group) for group in groups.values()]


def cell_result(results: Sequence[SeedResult]) -> CellResult:
    """The result of one cell from one start, over its seeds."""
    gains = [result.gain for result in results if result.gain is not None]
    controls = [result.alone for result in results if result.alone is not None]
    mean = fmean(gains) if gains else None
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
    noise = None if error is None else max(2 * error, (max(controls) - min(controls)) / 2)
    lost = sum(result.controlled is None and result.alone is not None for result in results)
    saved = sum(result.controlled is not None and result.alone is None for result in results)
    first, changes = results[0], sum(result.changes for result in results)
    verdict = _verdict(results, mean, noise, lost, saved)
    return CellResult(first.start, first.cell, len(results), changes, mean, error, noise, lost, saved, verdict)


def _verdict(results: Sequence[SeedResult], mean: float | None, noise: float | None, lost: int, saved: int) -> Verdict:
    if lost:
        return "WORSE"
    if all(result.changes == 0 and result.controlled == result.alone for result in results):
        return "both diverged" if mean is None else "same"
    if mean is not None and noise is not None and mean < -noise:
        return "WORSE"  # a seed that was saved does not make up for a loss on the others
    if saved:
        return "better"
    if mean is None:
        return "both diverged"
    if noise is None:
        return "one seed"
    return "better" if mean > noise else "within noise"


def totals(results: Sequence[SeedResult]) -> dict[str, object]:
    """Counts by start, then over all runs. Steps and changes are those of runs that ended."""
    cells = cell_results(results)
    figures: dict[str, object] = {}
    for start in dict.fromkeys(cell.start for cell in cells):
        verdicts = [cell.verdict for cell in cells if cell.start == start]
        ended = [result for result in results if result.start == start and result.controlled is not None]
        changes, steps = sum(result.changes for result in ended), sum(result.steps for result in ended)
        figures |= {
            f"{start}_cells": len(verdicts),
            f"{start}_worse": verdicts.count("WORSE"),
            f"{start}_better": verdicts.count("better"),
            f"{start}_one_seed": verdicts.count("one seed"),
            f"{start}_changes_per_1000_steps": round(1000 * changes / steps, 2) if steps else None,
        }
    return figures | {
        "rate_changes_checked": sum(result.rates_checked for result in results),
        "rate_changes_not_matched": sum(result.rates_wrong for result in results),
        "most_rollbacks_to_one_step": max((result.same_place for result in results), default=0),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
