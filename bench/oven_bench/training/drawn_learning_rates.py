"""`bench rates`: pretraining from a learning rate that is wrong by a factor that no one chose: who ends near the tuned
run?

Each draw is a seed: the factor (1/30 to 30, log-uniform), the weights and the order of the data follow from it, and
every arm of a draw shares them (paired). Regret is what an arm's final bits per byte, on held-out files, are above the
tuned run's, as a share of these. Gradient steps are equal for all, those that a rollback throws away included. The
swarm is the real stack: server, mesh and agents as processes, in lockstep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Annotated

from typer import Option

from oven_bench.study import FirstSeed, HomeFolder, Jobs, Report, Study, home_folder, one_of
from oven_bench.training.recipe_run import Episode, Result, by_seed, run_all
from oven_recipes.pretrain.settings import TUNED_LEARNING_RATE, parse_start

ARMS = ("swarm", "alone", "plateau", "cosine")
"""The whole stack; no controller; ReduceLROnPlateau; the schedule that decays to 0 along half a cosine."""
TUNED = "tuned"
STEPS = 400

Draws = dict[int, dict[str, Result]]


def figures(results: Sequence[Result], arms: Sequence[str] = ARMS) -> dict[str, object]:
    """One flat object. A run whose loss is not a number at the end has an infinite regret: it counts in the medians,
    and a median (or a worst) that is infinite is null."""
    draws = by_draw(results, arms)
    found: dict[str, object] = {"draws": len(draws)}
    for arm in arms:
        regrets = [regret(of, arm) for of in draws.values()]
        found[f"median_regret_{arm}"] = _rounded(median(regrets)) if regrets else None
        found[f"worst_regret_{arm}"] = _rounded(max(regrets, default=math.inf))
        found[f"not_finite_{arm}"] = sum(math.isinf(one) for one in regrets)
    if "swarm" in arms:
        found["worst"] = found["worst_regret_swarm"]
        found["interventions_swarm"] = sum(of["swarm"].interventions for of in draws.values())
        for arm in (one for one in arms if one != "swarm"):
            pairs = [(regret(of, "swarm"), regret(of, arm)) for of in draws.values()]
            found[f"draws_better_than_{arm}"] = sum(swarm < other for swarm, other in pairs)
    return found


def regret(draw: dict[str, Result], arm: str) -> float:
    """Of one draw's arm, as a share of the tuned run's bits per byte."""
    final, tuned = draw[arm].final, draw[TUNED].final
    return (final - tuned) / tuned if math.isfinite(final) else math.inf


def by_draw(results: Sequence[Result], arms: Sequence[str]) -> Draws:
    """Of the draws that have all arms, and a tuned run to compare with."""
    found = by_seed(results).items()
    return {seed: of for seed, of in found if {*arms, TUNED} <= set(of) and math.isfinite(of[TUNED].final)}


def rows(results: Sequence[Result], arms: Sequence[str] = ARMS) -> list[dict[str, float | None]]:
    """One entry per draw: its seed, the factor that its rate is wrong by, each arm's bits per byte at the end, and how
    often the swarm changed something."""
    return [
        {"seed": float(seed), "factor": round(parse_start("drawn", seed).learning_rate / TUNED_LEARNING_RATE, 4)}
        | {arm: _rounded(of[arm].final) for arm in (TUNED, *arms)}
        | ({"interventions": float(of["swarm"].interventions)} if "swarm" in arms else {})
        for seed, of in by_draw(results, arms).items()
    ]


def episodes(seeds: Sequence[int], arms: Sequence[str], steps: int, home: str) -> list[Episode]:
    """The slowest first: what is started last is waited for alone."""
    schedule = {"cosine": (("schedule", "cosine"),)}
    return [
        Episode(arm, "tuned" if arm == TUNED else "drawn", seed, steps, home, options=schedule.get(arm, ()),
                recipe="pretrain")
        for seed in seeds
        for arm in (*arms, TUNED)
    ]  # fmt: skip


def bench(
    draws: Annotated[int, Option(min=1, help="Number of rates; about 3 min each on two cores.")] = 10,
    first_seed: FirstSeed = 1,
    steps: Annotated[int, Option(min=1, help="Gradient steps of each run.")] = STEPS,
    arm: Annotated[list[str] | None, one_of(ARMS, "Only this arm; repeat it for more.")] = None,
    jobs: Jobs = 2,
    home: HomeFolder = None,
) -> Report:
    arms = tuple(one for one in ARMS if one in (arm or ARMS))
    with home_folder(home) as folder:
        seeds = range(first_seed, first_seed + draws)
        found = run_all(episodes(seeds, arms, steps, str(folder)), jobs)
    return Report(figures(found, arms), rows(found, arms))


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


STUDY = Study(
    "rates",
    bench,
    "--draws 10 --json",
)
