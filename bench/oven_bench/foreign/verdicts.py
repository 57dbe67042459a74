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
from typing import Final, Literal

Verdict = Literal["same", "within noise", "better", "WORSE", "one seed", "both diverged"]
"""One seed has no noise to hold a difference against, so that it is neither better nor worse."""
COLUMNS: Final = ("start", "cell", "seeds", "changes", "mean gain", "SE", "noise", "verdict")


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

    def cells(self) -> tuple[str, ...]:
        """As COLUMNS has them."""
        apart = [f"{count} {said}" for count, said in ((self.lost, "lost"), (self.saved, "saved")) if count]
        return (
            self.start,
            self.cell,
            str(self.seeds),
            str(self.changes),
            _signed(self.gain),
            "" if self.error is None else f"{self.error:.4f}",
            "" if self.noise is None else f"{self.noise:.4f}",
            self.verdict + (f" ({', '.join(apart)})" if apart else ""),
        )


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


def table(of: Sequence[Row]) -> list[str]:
    """In Markdown, its columns of equal width."""
    lines = [COLUMNS, *(one.cells() for one in of)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    drawn = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return [drawn[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *drawn[1:]]


def totals(played: Sequence[Played]) -> list[str]:
    """A line per start, then what is counted over all runs. Steps and changes are those of runs that ended."""
    found = rows(played)
    lines = []
    for start in dict.fromkeys(one.start for one in found):
        of_it = [one for one in found if one.start == start]
        ended = [one for one in played if one.start == start and one.controlled is not None]
        changes, steps = sum(one.changes for one in ended), sum(one.steps for one in ended)
        counted = {verdict: sum(one.verdict == verdict for one in of_it) for verdict in ("WORSE", "better")}
        unsure = sum(one.verdict == "one seed" for one in of_it)
        lines.append(
            f"{start}: worse in {counted['WORSE']}, better in {counted['better']} of {len(of_it)} cells"
            + (f" ({unsure} changed on one seed only, so not judged)" if unsure else "")
            + (f"; {changes} changes in {steps} steps ({1000 * changes / steps:.2f} per 1,000)" if ended else "")
        )
    receipts, mismatches = sum(one.receipts for one in played), sum(one.mismatches for one in played)
    most = max((one.same_place for one in played), default=0)
    return [
        *lines,
        f"learning-rate receipts that the rate used does not match: {mismatches} of {receipts}",
        f"most rollbacks to one step without a better held-out reading since: {most}",
    ]


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"
