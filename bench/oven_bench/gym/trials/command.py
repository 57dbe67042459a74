"""`bench trials`: what a trial changes that it should not, what its interval holds, and what it costs a healthy run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any

import torch
from typer import Option

from oven_bench.bench_command import Bench, FirstSeed, Json, print_object
from oven_bench.gym.score import healthy
from oven_bench.gym.trainee_factory import Make, make
from oven_bench.gym.trials import bit_equality, coverage, healthy_with_trials, null_trials, planted_arms
from oven_bench.gym.trials.bit_equality import Compared
from oven_bench.gym.trials.coverage import LARGE, SMALL, Effect
from oven_bench.gym.trials.healthy_with_trials import Played
from oven_bench.gym.trials.null_trials import PER_RUN
from oven_bench.gym.trials.ordered_trials import Seen
from oven_bench.gym.trials.planted_arms import TASKS
from oven_bench.progress import progress

COPIES = 2
"""Beside the run, at most."""
QUICK_EVERY = 10
"""Of the healthy families."""
SIZES = {"small": (0.0, SMALL), "middling": (SMALL, LARGE), "large": (LARGE, float("inf"))}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    seeds: Sequence[int]
    nulls: int
    """Runs of PER_RUN trials, of each task."""
    rounds: int
    """Of all planted effects, in each run."""
    draws: int
    """Samples of each effect."""
    every: int
    """Of the healthy families one in so many, on the first seed."""


@dataclass(slots=True)
class Found:
    """All that was measured."""

    compared: list[Compared] = field(default_factory=list)
    nulls: list[Seen] = field(default_factory=list)
    luck: list[Seen] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)
    charged: list[Seen] = field(default_factory=list)
    """Every trial that was ordered here."""


def measure(found: Found, make: Make, size: Size) -> Iterator[str]:
    """Adds to `found`; what was measured last, in words."""
    for one in bit_equality.compared(make, TASKS, size.seeds):
        found.compared.append(one)
        found.charged += one.seen
        yield "bits"
    for kind in TASKS:
        found.charged += bit_equality.three_changes(make, kind, size.seeds[0])
        for number in range(size.nulls):
            found.nulls += null_trials.nulls(make, kind, size.seeds[0] + number, PER_RUN)
            yield "nothing changed"
        for seed in size.seeds:
            effects, seen = coverage.effects_of(make, kind, seed, size.rounds, size.draws)
            found.effects += effects
            found.charged += seen
            yield "planted effects"
    for seed in size.seeds:
        found.luck += null_trials.luck(make, seed, PER_RUN)
        yield "other batches"
    found.charged += [*found.nulls, *found.luck]
    for played in healthy_with_trials.played(make, healthy_with_trials.families()[:: size.every], size.seeds[:1]):
        found.played.append(played)
        yield "healthy runs"


def parts(size: Size) -> int:
    """How often `measure` yields."""
    arms = sum(len(planted_arms.arms(kind, bit_equality.BEGIN)) for kind in TASKS)
    of_tasks = len(TASKS) * (size.nulls + len(size.seeds))
    return len(size.seeds) * (arms + 1) + of_tasks + len(healthy_with_trials.families()[:: size.every])


def figures(found: Found) -> dict[str, Any]:
    """Shares, each with how many it is of."""
    told = {
        "control_bit_equal": _share([one.control_equal for one in found.compared]),
        "change_bit_equal": _share([one.change_equal for one in found.compared]),
        "bit_equal_runs": len(found.compared),
        "null_kept_share": _share([bool(seen.ended.kept) for seen in found.nulls]),
        "null_trials": len(found.nulls),
        "other_batches_kept_share": _share([seen.would_keep for seen in found.luck]),
        "other_batches_trials": len(found.luck),
    }
    return told | coverages(found.effects) | _healthy(found.played) | charges(found.charged)


def coverages(effects: Sequence[Effect]) -> dict[str, Any]:
    """In all, by task, and by the size of the effect."""
    of = {"": effects} | {f"_{kind}": [one for one in effects if one.kind == kind] for kind in TASKS}
    for name, (low, high) in SIZES.items():
        of[f"_{name}_effects"] = [one for one in effects if low <= one.size < high]
    told: dict[str, Any] = {}
    for name, some in of.items():
        told[f"coverage{name}"] = _share([held for one in some for held in one.covered])
        told[f"coverage{name}_trials"] = len(some)
    return told | {"coverage_intervals": sum(len(one.samples) for one in effects)}


def _healthy(played: Sequence[Played]) -> dict[str, Any]:
    rows, trials = [one.row for one in played], [trial for one in played for trial in one.trials]
    steps, of = sum(row.steps for row in rows), healthy(rows)
    return {
        "healthy_kept_per_1000": round(of.interventions_per_1000, 3),
        "healthy_kept": sum(row.interventions for row in rows),
        "healthy_cost": round(of.harm.mean, 5),
        "healthy_cost_low": round(of.harm.low, 5),
        "healthy_cost_high": round(of.harm.high, 5),
        "healthy_runs": len(rows),
        "healthy_steps": steps,
        "healthy_trials": len(trials),
        "healthy_trial_steps_share": round(sum(trial.extra for trial in trials) / steps, 4),
    }


def charges(charged: Sequence[Seen]) -> dict[str, Any]:
    """`seconds_charged` is of all trials together, `seconds_within_2_percent` the share of single ones."""
    exact = [seen.ended.steps == seen.steps and seen.ended.extra == seen.steps - seen.gone_on for seen in charged]
    near = [abs(seen.ended.seconds / seen.seconds - 1) <= 0.02 for seen in charged]
    return {
        "steps_charged_exact": _share(exact),
        "trials_charged": len(charged),
        "steps_of_trials": sum(seen.steps for seen in charged),
        "seconds_charged": round(sum(s.ended.seconds for s in charged) / sum(s.seconds for s in charged), 4),
        "seconds_within_2_percent": _share(near),
        "copies_at_once": max(seen.copies for seen in charged),
        "copies_left": sum(seen.left for seen in charged),
    }


def _share(held: Sequence[bool]) -> float | None:
    return round(fmean(held), 4) if held else None


def bench(
    quick: Annotated[bool, Option("--quick", help="One seed, and a tenth of the healthy families: 1 minute.")] = False,
    seeds: Annotated[int, Option(min=1, help="Runs of each task, for bits and for planted effects.")] = 3,
    nulls: Annotated[int, Option(min=1, help="Trials that change nothing, in runs of 25 of each task.")] = 200,
    first_seed: FirstSeed = 1,
    as_json: Json = False,
) -> int:
    torch.set_num_threads(1)
    runs = max(1, round(nulls / PER_RUN / len(TASKS)))
    size = Size([*range(first_seed, first_seed + seeds)], runs, rounds=3, draws=20, every=1)
    if quick:
        size = Size([first_seed], 1, rounds=1, draws=20, every=QUICK_EVERY)
    found = Found()
    with progress("trials", parts(size)) as advance:
        for newest in measure(found, make, size):
            advance(1, newest)
    told = figures(found)
    print_object(told, as_json)
    exact = (told[name] for name in ("control_bit_equal", "change_bit_equal", "steps_charged_exact"))
    return 0 if all(share == 1 for share in exact) and told["copies_at_once"] <= COPIES else 1


BENCH = Bench(
    "trials",
    bench,
    "trials of changes on the gym's trainees: bits, null changes, coverage, healthy runs, charges, copies",
    "--quick --json",
    "Exit code 1 where a bit or a charged step differs, or more than two copies are held.",
)
