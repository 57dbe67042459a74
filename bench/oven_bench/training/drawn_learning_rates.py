"""`bench rates`: pretraining from a learning rate that is wrong by a random factor. Which arm ends near the tuned run?

Each draw is a seed. It decides the factor (1/30 to 30, log-uniform), the weights and the order of the data, which all
arms of the draw share (paired). Regret is the increase of an arm's final bits per byte on held-out files over the tuned
run's, as a share of the latter. All arms make the same number of gradient steps, including those that a rollback
discards. The swarm is the real stack: server, mesh and agents as processes, in lockstep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from oven_bench.study import Report, Study, first_seed_option, home_folder, home_option, jobs_option
from oven_bench.training.recipe_run import Episode, Result, by_seed, run_all
from oven_recipes.pretrain.settings import TUNED_LEARNING_RATE, PretrainSettings, parse_start

ARMS = ("swarm", "alone", "plateau", "cosine")
"""The whole stack, no controller, ReduceLROnPlateau, and a cosine decay to 0."""
TUNED = "tuned"
STEPS = 400

Draws = dict[int, dict[str, Result]]


def figures(results: Sequence[Result], arms: Sequence[str] = ARMS) -> dict[str, object]:
    """The flat object. A run that ends with a loss of NaN has infinite regret, which counts in the medians. An infinite
    median or worst regret is null."""
    draws = by_draw(results, arms)
    values: dict[str, object] = {"draws": len(draws)}
    for arm in arms:
        regrets = [regret(draw, arm) for draw in draws.values()]
        values[f"median_regret_{arm}"] = _rounded(median(regrets)) if regrets else None
        values[f"worst_regret_{arm}"] = _rounded(max(regrets, default=math.inf))
        values[f"not_finite_{arm}"] = sum(map(math.isinf, regrets))
    if "swarm" in arms:
        values["worst"] = values["worst_regret_swarm"]
        values["interventions_swarm"] = sum(draw["swarm"].interventions for draw in draws.values())
        for arm in (name for name in arms if name != "swarm"):
            pairs = [(regret(draw, "swarm"), regret(draw, arm)) for draw in draws.values()]
            values[f"draws_better_than_{arm}"] = sum(swarm < baseline for swarm, baseline in pairs)
    return values


def regret(draw: dict[str, Result], arm: str) -> float:
    """An arm's regret in one draw, as a share of the tuned run's bits per byte."""
    final, tuned = draw[arm].final, draw[TUNED].final
    return (final - tuned) / tuned if math.isfinite(final) else math.inf


def by_draw(results: Sequence[Result], arms: Sequence[str]) -> Draws:
    """The draws that have all arms, and a tuned run to compare with."""
    complete = {seed: draw for seed, draw in by_seed(results).items() if {*arms, TUNED} <= set(draw)}
    return {seed: draw for seed, draw in complete.items() if math.isfinite(draw[TUNED].final)}


def rows(results: Sequence[Result], arms: Sequence[str] = ARMS) -> list[dict[str, float | None]]:
    """One row per draw: its seed, the factor of its learning rate, each arm's final bits per byte, and the number of
    changes that the swarm made."""
    return [
        {
            "seed": float(seed),
            "factor": round(parse_start("drawn", seed, PretrainSettings()).learning_rate / TUNED_LEARNING_RATE, 4),
        }
        | {arm: _rounded(draw[arm].final) for arm in (TUNED, *arms)}
        | ({"interventions": float(draw["swarm"].interventions)} if "swarm" in arms else {})
        for seed, draw in by_draw(results, arms).items()
    ]


def episodes(seeds: Sequence[int], arms: Sequence[str], steps: int, home: str) -> list[Episode]:
    """The slowest arms first, because nothing else runs while the last one finishes."""
    schedule = {"cosine": (("schedule", "cosine"),)}
    return [
        Episode(arm, "tuned" if arm == TUNED else "drawn", seed, steps, home, options=schedule.get(arm, ()),
                recipe="pretrain")
        for seed in seeds
        for arm in (*arms, TUNED)
    ]  # fmt: skip


@click.option("--draws", type=click.IntRange(min=1), default=10, help="Number of rates; about 3 min each on two cores.")
@first_seed_option
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, help="Gradient steps of each run.")
@click.option("--arm", multiple=True, type=click.Choice(ARMS), help="Only this arm; repeat it for more.")
@jobs_option()
@home_option
def bench(draws: int, first_seed: int, steps: int, arm: Sequence[str], jobs: int, home: Path | None) -> Report:
    arms = tuple(name for name in ARMS if name in (arm or ARMS))
    with home_folder(home) as folder:
        seeds = range(first_seed, first_seed + draws)
        results = run_all(episodes(seeds, arms, steps, str(folder)), jobs)
    return Report(figures(results, arms), rows(results, arms))


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


STUDY = Study("rates", bench, "--draws 10 --json")
