"""`bench starts`: from random starts, does the swarm end closer to the tuned run than no controller does?

Each draw is a seed. It decides the learning rate, the mixture, the warm-up policy and the prompts, which all arms of
the draw share (paired). Regret is the tuned run's final held-out accuracy minus the arm's. All arms make the same
number of gradient steps, including those that a rollback discards. The swarm is the real stack: server, mesh and agents
as processes, in lockstep.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from oven_bench.study import Report, Study, first_seed_option, home_folder, home_option, jobs_option
from oven_bench.training.recipe_run import Episode, Result, by_seed, run_all

ARMS = ("tuned", "swarm", "alone", "blind", "plateau")
RULES = ("swarm", "alone", "blind", "plateau")
BLIND_FACTOR = 0.5


def figures(results: Sequence[Result]) -> dict[str, object]:
    """The flat object of the command contract."""
    draws = _by_draw(results)
    regret = {arm: [arms["tuned"].final - arms[arm].final for arms in draws.values()] for arm in RULES}
    out: dict[str, object] = {"draws": len(draws)}
    for arm in RULES:
        out[f"median_regret_{arm}"] = round(median(regret[arm]), 4)
        out[f"mean_regret_{arm}"] = round(sum(regret[arm]) / len(draws), 4)
    losses = [arms["alone"].final - arms["swarm"].final for arms in draws.values()]
    out["worst_loss"] = round(max(losses), 4)
    out["draws_better"] = sum(loss < -0.005 for loss in losses)
    out["draws_equal"] = sum(abs(loss) <= 0.005 for loss in losses)
    out["draws_worse"] = sum(loss > 0.005 for loss in losses)
    return out


def rows(results: Sequence[Result]) -> list[dict[str, float]]:
    """One row per draw: its seed, each arm's final accuracy, and the number of changes that the swarm made."""
    return [
        {"seed": seed}
        | {arm: round(arms[arm].final, 4) for arm in ARMS}
        | {"interventions": arms["swarm"].interventions}
        for seed, arms in _by_draw(results).items()
    ]


def _by_draw(results: Sequence[Result]) -> dict[int, dict[str, Result]]:
    """The draws that have all arms."""
    return {seed: arms for seed, arms in by_seed(results).items() if set(arms) == set(ARMS)}


@click.option(
    "--draws", type=click.IntRange(min=1), default=20, help="Number of starts; about 100 s each on two cores."
)
@first_seed_option
@click.option("--steps", type=click.IntRange(min=1), default=120, help="Gradient steps of each run.")
@jobs_option()
@home_option
def bench(draws: int, first_seed: int, steps: int, jobs: int, home: Path | None) -> Report:
    with home_folder(home) as folder:
        episodes = [
            Episode(arm, "tuned" if arm == "tuned" else "drawn", seed, steps, str(folder), BLIND_FACTOR)
            for seed in range(first_seed, first_seed + draws)
            for arm in ARMS
        ]
        results = run_all(episodes, jobs)
    return Report(figures(results), rows(results))


STUDY = Study("starts", bench, "--draws 20 --json")
