"""Measured runs as a table: Supervisor Distillation's nine columns, then F1 of answers and evidence, and cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from oven_llm.experiments.analysis import AGREES, Row

COLUMNS: Final = (
    "Supervisor",
    "Worker",
    "Accuracy",
    "Avg Steps",
    "Total Steps",
    "Sup In",
    "Sup Out",
    "Wrk In",
    "Wrk Out",
    "Answer F1",
    "Evidence F1",
    "USD",
)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of text, as wide as their contents."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(COLUMNS))]
    lines = [
        " | ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    return [lines[0], "-+-".join("-" * width for width in widths), *lines[1:], *_notes(rows)]


def _cells(row: Row) -> tuple[str, ...]:
    share = f"{row.correct / row.scored:.0%}" if row.scored else "–"
    average = f"{row.steps / row.questions:.1f}" if row.steps is not None and row.questions else "–"
    counts = (row.steps, row.supervisor_in, row.supervisor_out, row.worker_in, row.worker_out)
    return (
        row.supervisor,
        row.worker,
        f"{share} ({row.correct:g}/{row.scored})",
        average,
        *("–" if count is None else f"{count:,}" for count in counts),
        *("–" if one is None else str(one) for one in (row.answer_f1, row.evidence_f1)),
        "?" if row.usd is None else f"{row.usd:.4f}",
    )


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        name = _name(row)
        if row.errors:
            kinds = ", ".join(f"{kind} {count}" for kind, count in row.failed.items())
            yield f"{name}: {row.errors} of {row.questions} have no score, since a call failed ({kinds})"
        if row.by_kind and row.gain is None:
            yield f"{name}: answer F1 by kind: " + ", ".join(f"{kind} {f1:.3f}" for kind, f1 in row.by_kind.items())
        if row.missing:
            yield f"{name}: {row.missing} of {row.questions} have no answer, which counts as 0"
        if row.kappa is not None and row.gain is None:
            yield f"{name}: κ {row.kappa:.2f} between {row.judge} and answer F1 ≥ {AGREES:g}"
        if row.gain is not None:
            yield f"{name}: the supervisor's answer F1 is higher by {row.gain}"
    yield f"Intervals are 95 %, over documents, of five or more. Accuracy is {_accuracy(rows)}."


def _name(row: Row) -> str:
    return f"{row.supervisor.removeprefix('– ')}, {row.worker}".removesuffix(", –")


def _accuracy(rows: Sequence[Row]) -> str:
    exact = [row for row in rows if not row.judge]
    if not exact:
        return "the judge's"
    if len(exact) == len(rows):
        return "exact match"
    without = "; ".join(dict.fromkeys(_name(row) for row in exact if row.gain is None))
    return f"the judge's, but exact match in runs without one ({without})"
