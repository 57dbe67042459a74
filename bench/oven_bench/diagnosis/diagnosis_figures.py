"""What the rows of `bench supervisor` come to: causes, onsets, false alarms, cost, with intervals and a verdict.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

from oven_bench.diagnosis.diagnosed_run import Named, Row
from oven_bench.statistics import Interval, bootstrapped_mean, share, word
from oven_llm.diagnosis.model_answer import NONE

SMALLEST: Final = 0.05
"""The smallest difference of interest, in the share of causes that are right: one fault in twenty."""
NEAR: Final = 10
"""Ticks within which an onset counts as found: a rollback goes to a snapshot before it, and those are 20 apart."""
CHANGES: Final = 40
"""A fault that was there by this tick cannot be dated by a test of changes."""
WAYS: Final[Mapping[str, Callable[[Row], Named]]] = {
    "detectors": lambda row: row.detectors,
    "programs": lambda row: row.programs,
}


def figures(rows: Sequence[Row], causes: Mapping[str, Sequence[str]], price: tuple[float, float]) -> dict[str, Any]:
    """`causes`: the right ones, by family; `price`: US dollars per million tokens, input and output, where the endpoint
    has none. Intervals resample families: the seeds of one fail alike."""
    faulty, healthy = [row for row in rows if not row.healthy], [row for row in rows if row.healthy]
    found: dict[str, Any] = {
        "runs": len(rows),
        "families": len({row.family for row in faulty}),
        "healthy_families": len({row.family for row in healthy}),
        "seeds": sorted({row.seed for row in rows}),
        "floor": _floor(faulty, causes),
    }
    for way, of in WAYS.items():
        found[way] = _way(faulty, healthy, causes, of)
    found["programs"] |= _cost(rows, price)
    difference = _by_family(faulty, lambda row: _right(row, row.programs, causes) - _right(row, row.detectors, causes))
    answered = [row for row in healthy if not row.programs.failure]
    alarms = _by_family(answered, lambda row: _named(row.detectors) - _named(row.programs))
    found["difference"] = _shown(difference)
    found["fewer_false_alarms"] = _shown(alarms)
    enough = difference is not None and found["families"] > 1  # one family has no interval
    found["verdict"] = word(difference.low, difference.high, SMALLEST) if difference and enough else "INCONCLUSIVE"
    found["by_family"] = _families(rows, causes)
    return found


def _way(
    faulty: Sequence[Row], healthy: Sequence[Row], causes: Mapping[str, Sequence[str]], of: Callable[[Row], Named]
) -> dict[str, Any]:
    named = [row for row in faulty if _named(of(row))]
    dated = [row for row in named if row.onset > CHANGES]
    errors = [(of(row).onset or 0) - row.onset for row in dated]
    hits = [abs(error) <= NEAR for error in errors]
    refused = Counter(of(row).failure for row in (*faulty, *healthy) if of(row).failure)
    answered = [of(row) for row in healthy if not of(row).failure]
    return {
        "cause_right": _shown(_by_family(faulty, lambda row: _right(row, of(row), causes))),
        "said_nothing": len(faulty) - len(named),
        "onset_error_median": median(map(abs, errors)) if errors else None,
        "onset_near": _shown(share(sum(hits), len(hits))) if hits else None,
        "dated": len(dated),
        "false_alarms": _shown(share(sum(map(_named, answered)), len(answered))) if answered else None,
        "refused": dict(sorted(refused.items())),
    }


def _cost(rows: Sequence[Row], price: tuple[float, float]) -> dict[str, Any]:
    dear = [
        row.usd if row.usd is not None else (row.input_tokens * price[0] + row.output_tokens * price[1]) / 1e6
        for row in rows
    ]
    return {
        "calls": sum(row.calls for row in rows),
        "input_tokens": sum(row.input_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "usd_each": round(fmean(dear), 6) if dear else None,
        "usd": round(sum(dear), 4),
        "seconds_each": round(median(row.seconds for row in rows), 4) if rows else None,
    }


def _floor(faulty: Sequence[Row], causes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The best constant answer, found with the answers known: what naming nothing but the commonest cause would get."""
    counts: Counter[str] = Counter()
    for row in faulty:
        counts.update(causes[row.family])
    if not counts:
        return {}
    cause, _ = counts.most_common(1)[0]
    right = _by_family(faulty, lambda row: float(cause in causes[row.family]))
    return {"cause": cause, "right": _shown(right)}


def _by_family(rows: Sequence[Row], of: Callable[[Row], float]) -> Interval | None:
    """None of no rows."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.family, []).append(of(row))
    return bootstrapped_mean([fmean(one) for one in values.values()]) if values else None


def _families(rows: Sequence[Row], causes: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Family → seeds, right answers of both ways, and what the programs said."""
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row.family, row.seed)):
        entry = found.setdefault(row.family, {"runs": 0, "detectors": 0, "programs": 0, "said": Counter()})
        entry["runs"] += 1
        for way, of in WAYS.items():
            said = of(row)
            well = not said.failure and not _named(said)
            entry[way] += int(well if row.healthy else _right(row, said, causes))
        entry["said"][row.programs.failure or row.programs.cause] += 1
    return {family: {**entry, "said": dict(entry["said"])} for family, entry in found.items()}


def _right(row: Row, said: Named, causes: Mapping[str, Sequence[str]]) -> float:
    return float(said.cause in causes[row.family])


def _named(said: Named) -> bool:
    return said.cause != NONE


def _shown(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {"value": round(interval.mean, 4), "low": round(interval.low, 4), "high": round(interval.high, 4)}
