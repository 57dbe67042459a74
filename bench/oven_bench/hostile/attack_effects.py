"""Compares each attack with the same run without it, and estimates the noise between two such runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

from oven_bench.hostile.attacks import ATTACKS, NOBODY, STARTS
from oven_bench.hostile.run_facts import Row
from oven_bench.intervals import t_quantile
from oven_bench.study import Report
from oven_core.protocol.rules import Rules

COLUMNS = (
    "name", "start", "seed", "accuracy", "without", "within_noise", "remedy_windows", "log_ratio", "rejected",
    "reputation", "honest_reputation", "processes_left", "exit",
)  # fmt: skip
"""The figures of an attack that the table shows."""
NOISE_SEEDS = 4
"""Runs without an attack per start that the noise is estimated from, at least."""


def report(rows: Sequence[Row], prompts: int) -> Report:
    """All attacks next to their runs without an attack. `prompts`: number of held-out prompts, all levels together."""
    without = {(row.case.start, row.case.seed): row for row in rows if not row.case.attack}
    starts = sorted({start for start, _ in without})
    noises = {start: noise([r.log.accuracy or 0.0 for (s, _), r in without.items() if s == start], prompts)
              for start in starts}  # fmt: skip
    known = [*ATTACKS, NOBODY.name]
    order = sorted(
        rows, key=lambda row: (known.index(row.case.attack), list(STARTS).index(row.case.start), row.case.seed)
    )
    pairs = [(row, without[row.case.start, row.case.seed]) for row in order if row.case.attack]
    attacks = [beside(row, base, noises[row.case.start]) for row, base in pairs if not _honest(row)]
    newcomers = [newcomer(row, base) for row, base in pairs if _honest(row)]
    figures = {
        "steps": max((row.case.steps for row in rows), default=0),
        "noise": {start: round(value, 4) for start, value in noises.items()},
        "attacks": attacks,
        "newcomer": newcomers,
    }
    return Report(figures, [{key: row[key] for key in COLUMNS} for row in attacks] or newcomers)


def _honest(row: Row) -> bool:
    return ATTACKS[row.case.attack].honest


def noise(accuracies: Sequence[float], prompts: int) -> float:
    """The difference in final accuracy that two runs without an attack stay within, with 95 % confidence: √2 times the
    larger of 1.96 standard errors of one evaluation (binomial, all levels pooled, an upper bound) and Student's t times
    the standard deviation across seeds. It is conservative: compared runs share their seed, and these do not."""
    mean = fmean(accuracies)
    evaluation = NormalDist().inv_cdf(0.975) * math.sqrt(max(0.0, mean * (1 - mean)) / prompts)
    seeds = t_quantile(len(accuracies) - 1) * stdev(accuracies) if len(accuracies) > 1 else 0.0
    return math.sqrt(2) * max(evaluation, seeds)


def beside(row: Row, base: Row, noise: float) -> dict[str, object]:
    """One attack's figures. `within_noise`: the run did not end lower than the run without the attack by more than the
    noise. It is false if the run has no result, and true if the run ended higher."""
    accuracy, without = row.log.accuracy, base.log.accuracy
    assert without is not None, "`play` refuses a run without an attack that has no result"
    first, sooner = row.log.remedy_tick, base.log.remedy_tick
    later = (first - sooner) / Rules().window_ticks if first is not None and sooner is not None else None
    return {
        "name": row.case.attack,
        "start": row.case.start,
        "seed": row.case.seed,
        "accuracy": _rounded(accuracy, 4),
        "without": _rounded(without, 4),
        "within_noise": accuracy is not None and accuracy >= without - noise,
        "remedy_windows": _rounded(later, 2) if row.case.start != "tuned" else None,
        "remedy_tick": first,
        "log_ratio": round(row.log.events / base.log.events, 2),
        "log_mb": round(row.log_bytes / 1e6, 2),
        "decisions": row.log.own,
        "rejected": row.log.rejected,
        "rejected_without": base.log.rejected,
        "earned": _rounded(row.log.earned, 3),
        "harm_tick": row.log.harm_tick,
        "decided_since": row.log.decided_since,
        "reputation": _rounded(row.log.reputation, 3),
        "honest_reputation": _rounded(row.log.honest_reputation, 3),
        "memory_mb": row.memory_mb,
        "processes_left": row.processes_left,
        "exit": row.exit,
        "seconds": row.seconds,
    }


def newcomer(row: Row, base: Row) -> dict[str, object]:
    """How long an honest newcomer waits until its own decision is adopted, when no other agent sees the fault."""
    return {
        "name": row.case.attack,
        "start": row.case.start,
        "seed": row.case.seed,
        "granted": bool(ATTACKS[row.case.attack].granted),
        "scored_outcomes": row.log.scored,
        "first_decision_tick": row.log.own_tick,
        "decisions": row.log.own,
        "remedy_tick_without": base.log.remedy_tick,
        "accuracy": _rounded(row.log.accuracy, 4),
        "without": _rounded(base.log.accuracy, 4),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
