"""`oven-controller gym`: does the controller help when a run goes wrong?

Plays episodes: a small training run with a fault, repaired by the controller, by fixed rules, at random or not at all.
Every arm of an episode starts from the same healthy run. The verdict compares one arm with the best baseline.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from oven_bench.gym.arms import arms as arms_by_name
from oven_bench.gym.faults import families as families_by_name
from oven_bench.gym.runner import missing_jobs, run_job
from oven_bench.gym.score import (
    BEST_RULE,
    ArmScore,
    HealthyCost,
    Row,
    arm_scores,
    best_rule,
    healthy_costs,
    oracle,
    verdict,
)
from oven_bench.intervals import Interval
from oven_bench.study import (
    PATH,
    Report,
    ResultsFile,
    Study,
    comma_separated,
    first_seed_option,
    jobs_option,
    run_tasks,
)
from oven_core.errors import ConfigError, ProcessError, UnknownNameError

SUBJECT = "mesh+kg"
"""The arm that the verdict is on by default: the controller as it ships."""
BASELINES = ("nothing", "random", BEST_RULE, "loss_spike", "not_a_number", "zclip", "plateau", "best_checkpoint")
"""Arms that the subject has to beat. The fixed rules count through `best_rule`; `oracle` knows the future."""
QUICK_ARMS = (
    "nothing", "random", "rule.cut_8", "rule.rollback_cut_8", "rule.rollback_skip", "loss_spike", "not_a_number",
    "zclip", "plateau", SUBJECT,
)  # fmt: skip
SEEDS, QUICK_SEEDS = 3, 1
QUICK_EVERY = 3
"""`--quick` plays every third family in the order of their names, healthy ones among them."""
FILE = "episodes.jsonl"


def play(
    arms: Sequence[str], families: Sequence[str], seeds: Collection[int], jobs: int, folder: Path
) -> tuple[list[Row], list[str]]:
    """The rows of all these episodes, and a line for each that failed. Rows in the folder are read, others are played
    and added to it."""
    results = ResultsFile(folder / FILE, TypeAdapter(Row))
    rows, failures = list(results.rows), list[str]()
    faults = [families_by_name()[name] for name in families]
    todo = missing_jobs(faults, seeds, arms, rows)
    for new_rows, errors in run_tasks(run_job, todo, jobs, unit="cases", describe=_describe):
        failures += errors
        for row in new_rows:
            results.append(row)
            rows.append(row)
    return [row for row in rows if row.family in families and row.seed in seeds and row.arm in arms], failures


def _describe(result: tuple[list[Row], list[str]]) -> str:
    rows, _ = result
    return f"{rows[-1].family}, seed {rows[-1].seed}" if rows else "failed"


def report(rows: Sequence[Row], subject: str) -> Report:
    """Scores of all arms, and the verdict on the subject against the baselines that were played."""
    every = [*rows, *best_rule(rows), *oracle(rows)]
    scores, costs = arm_scores(every), healthy_costs(every)
    baselines = {name: scores[name] for name in BASELINES if name in scores and name != subject}
    judged = verdict(scores.get(subject), baselines, costs.get(subject))
    figures: dict[str, Any] = {
        "arms": {arm: _score_figures(each) for arm, each in scores.items()},
        "healthy": _cost_figures(costs.get(subject)),
        "verdict": judged.word,
        "why": judged.why,
        "subject": subject,
        "best_baseline": judged.best or None,
        "difference": _interval(judged.difference) if judged.difference else None,
        "healthy_by_arm": {arm: _cost_figures(each) for arm, each in costs.items()},
    }
    harms = [f"{subject}: HARMS, {judged.why}"] if judged.word == "HARMS" else []
    return Report(figures, [_table_row(arm, each, costs.get(arm)) for arm, each in scores.items()], harms)


def _interval(interval: Interval) -> dict[str, float]:
    return {"mean": round(interval.mean, 4), "low": round(interval.low, 4), "high": round(interval.high, 4)}


def _score_figures(score: ArmScore) -> dict[str, Any]:
    return {
        **_interval(score.score),
        "worse_than_nothing": round(score.worse.mean, 4),
        "episodes": score.episodes,
        "families": len(score.families),
        "by_family": {family: round(mean, 4) for family, mean in score.families.items()},
    }


def _cost_figures(cost: HealthyCost | None) -> dict[str, float | None]:
    if cost is None:
        return dict.fromkeys(("harm", "low", "high", "interventions_per_1000"))
    return {
        "harm": round(cost.harm.mean, 5),
        "low": round(cost.harm.low, 5),
        "high": round(cost.harm.high, 5),
        "interventions_per_1000": round(cost.interventions_per_1000, 3),
    }


def _table_row(arm: str, score: ArmScore, cost: HealthyCost | None) -> dict[str, object]:
    return {
        "arm": arm,
        "harm undone": f"{score.score.mean:+.3f}",
        "95 %": f"{score.score.low:+.2f} … {score.score.high:+.2f}",
        "worse than nothing": f"{score.worse.mean:.0%}",
        "episodes": score.episodes,
        "healthy cost": f"{cost.harm.mean:+.2%}" if cost else None,
        "changes per 1,000 healthy steps": f"{cost.interventions_per_1000:.1f}" if cost else None,
    }


def selected(kind: str, patterns: Sequence[str], names: Collection[str]) -> list[str]:
    """The names that match exactly, or by their beginning if a pattern ends with `*`. Raises UnknownNameError."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        matching = [n for n in sorted(names) if n == pattern or (pattern[-1:] == "*" and n.startswith(pattern[:-1]))]
        if not matching:
            raise UnknownNameError(kind, pattern, names)
        chosen |= dict.fromkeys(matching)
    return list(chosen)


@click.option("--quick", is_flag=True, help="One seed, fewer arms, every third family: five minutes.")
@click.option(
    "--arms", default="", show_default=False, metavar="NAMES", help="Comma-separated; `rule.*` selects all of those."
)
@click.option(
    "--families",
    default="",
    show_default=False,
    metavar="NAMES",
    help="Comma-separated; `grpo.*` selects all of those.",
)
@click.option("--seeds", type=click.IntRange(min=1), show_default="3; 1 with --quick", help="Seeds per family.")
@first_seed_option
@jobs_option()
@click.option(
    "--resume", type=PATH, metavar="FOLDER", help="Keep the episodes there, and play only those that it lacks."
)
@click.option("--subject", default=SUBJECT, metavar="ARM", help="The arm that the verdict is on.")
def gym(
    quick: bool,
    arms: str,
    families: str,
    seeds: int | None,
    first_seed: int,
    jobs: int,
    resume: Path | None,
    subject: str,
) -> Report:
    known_arms, known_families = arms_by_name(), families_by_name()
    chosen_arms = selected("arm", comma_separated(arms), known_arms) or (QUICK_ARMS if quick else [*known_arms])
    chosen_families = selected("family of faults", comma_separated(families), known_families)
    chosen_families = chosen_families or [*known_families][:: QUICK_EVERY if quick else 1]
    if resume is not None and resume.is_file():
        raise ConfigError(f"--resume {resume} is a file; give a folder")
    chosen_seeds = range(first_seed, first_seed + (seeds or (QUICK_SEEDS if quick else SEEDS)))
    with nullcontext(resume) if resume else tempfile.TemporaryDirectory() as folder:
        rows, failures = play(
            list(dict.fromkeys(("nothing", *chosen_arms))), chosen_families, chosen_seeds, jobs, Path(folder)
        )
    result = report(rows, subject)
    if not failures:
        return result
    error = ProcessError(f"{len(failures)} episodes failed; all others were played. First: {failures[0]}")
    return Report(result.figures, result.rows, result.failures, error)


STUDY = Study("gym", gym, "--quick --resume gym", "Exit code 1: the verdict is HARMS.")
