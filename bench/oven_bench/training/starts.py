"""`bench starts`: from starts that no one chose, does the swarm end nearer to the tuned run than doing nothing does?

Each draw is a seed: learning rate, mixture, warm-up policy and prompts follow from it, and every arm of a draw shares
them (paired). Regret is the tuned run's final held-out accuracy minus the arm's. Gradient steps are equal for all,
those that a rollback throws away included. The swarm is the real stack: server, mesh and agents as processes, in
lockstep.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from oven_bench.progress import progress
from oven_bench.training.episode import Episode, Result, run
from oven_bench.workers import workers

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
    """One entry per draw: its seed, each arm's final accuracy, and how often the swarm changed something."""
    return [
        {"seed": seed}
        | {arm: round(arms[arm].final, 4) for arm in ARMS}
        | {"interventions": arms["swarm"].interventions}
        for seed, arms in _by_draw(results).items()
    ]


def _by_draw(results: Sequence[Result]) -> dict[int, dict[str, Result]]:
    """Seed → arm → result, of the draws that have all arms."""
    by_seed: dict[int, dict[str, Result]] = {}
    for result in results:
        by_seed.setdefault(result.episode.seed, {})[result.episode.arm] = result
    return {seed: arms for seed, arms in sorted(by_seed.items()) if set(arms) == set(ARMS)}


def measure(episodes: Sequence[Episode], jobs: int) -> Iterator[Result]:
    """Results as they come, `jobs` at a time, one thread each: two cores are busy and neither spins."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
    with workers(jobs) as pool:
        for future in as_completed([pool.submit(run, episode) for episode in episodes]):
            yield future.result()


class Starts:
    """The bench behind the entry point `starts`."""

    summary = "final held-out accuracy from drawn starts: swarm, no controller, a blind schedule, a plateau rule"

    def run(self, args: list[str]) -> int:
        parser = argparse.ArgumentParser(
            prog="oven-controller bench starts",
            description=self.summary,
            epilog="example: oven-controller bench starts --draws 20 --json",
        )
        parser.add_argument("--draws", type=int, default=20, help="how many starts (20; about 100 s each on two cores)")
        parser.add_argument(
            "--first-seed", type=int, default=1, help="seed of the first draw (1); the others follow it"
        )
        parser.add_argument("--steps", type=int, default=120, help="gradient steps of each run (120)")
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--rows", type=Path, metavar="FILE", help="write each draw's accuracies there, as JSON")
        parser.add_argument("--home", help="keep runs and warm-up cache here; a temporary folder otherwise")
        options = parser.parse_args(args)
        with tempfile.TemporaryDirectory() as scratch:
            home = options.home or scratch
            seeds = range(options.first_seed, options.first_seed + options.draws)
            episodes = [
                Episode(arm, "tuned" if arm == "tuned" else "drawn", seed, options.steps, str(Path(home).absolute()),
                        BLIND_FACTOR)
                for seed in seeds
                for arm in ARMS
            ]  # fmt: skip
            results = with_progress(episodes, options.jobs)
        if options.rows:
            options.rows.write_text(json.dumps(rows(results), indent=1) + "\n")
        if options.json:
            print(json.dumps(figures(results)))
        else:
            _show(figures(results), rows(results))
        return 0


def with_progress(episodes: Sequence[Episode], jobs: int) -> list[Result]:
    results = []
    with progress("runs", len(episodes)) as advance:
        for result in measure(episodes, jobs):
            results.append(result)
            advance(1, f"{result.episode.arm} {result.episode.seed}: {result.final:.3f}")
    return results


def _show(found: dict[str, object], draws: Sequence[dict[str, float]]) -> None:
    console = Console()
    table = Table("seed", *ARMS, "interventions")
    for row in draws:
        table.add_row(f"{row['seed']:.0f}", *(f"{row[arm]:.3f}" for arm in ARMS), f"{row['interventions']:.0f}")
    console.print(table)
    for name, value in found.items():
        console.print(f"{name}: {value}")


BENCH = Starts()
