"""`bench rates`: pretraining from a learning rate that is wrong by a factor that no one chose: who ends near the tuned
run?

Each draw is a seed: the factor (1/30 to 30, log-uniform), the weights and the order of the data follow from it, and
every arm of a draw shares them (paired). Regret is what an arm's final bits per byte, on held-out files, are above the
tuned run's, as a share of these. Gradient steps are equal for all, those that a rollback throws away included. The
swarm is the real stack: server, mesh and agents as processes, in lockstep.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from oven_bench.training.episode import Episode, Result
from oven_bench.training.starts import with_progress
from oven_learner.recipes.pretrain.settings import TUNED_LEARNING_RATE
from oven_learner.recipes.pretrain.starts import parse_start

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
    """Seed → arm → result, of the draws that have all arms and a tuned run to compare with."""
    found: Draws = {}
    for result in results:
        found.setdefault(result.episode.seed, {})[result.episode.arm] = result
    return {
        seed: of for seed, of in sorted(found.items()) if {*arms, TUNED} <= set(of) and math.isfinite(of[TUNED].final)
    }


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


class Rates:
    """The bench behind the entry point `rates`."""

    summary = "final bits per byte from a drawn learning rate: swarm, no controller, a plateau rule, a cosine schedule"

    def run(self, args: list[str]) -> int:
        parser = argparse.ArgumentParser(
            prog="oven-controller bench rates",
            description=self.summary,
            epilog="example: oven-controller bench rates --draws 10 --json",
        )
        parser.add_argument("--draws", type=int, default=10, help="how many rates (10; about 3 min each on two cores)")
        parser.add_argument("--first-seed", type=int, default=1, help="of the first draw (1); the others follow it")
        parser.add_argument("--steps", type=int, default=STEPS, help=f"gradient steps of each run ({STEPS})")
        parser.add_argument("--arm", choices=ARMS, action="append", help="only this one; repeat it for more")
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--rows", type=Path, metavar="FILE", help="write each draw's results there, as JSON")
        parser.add_argument("--home", help="keep runs and the tokens' cache here; a temporary folder otherwise")
        options = parser.parse_args(args)
        arms = tuple(arm for arm in ARMS if arm in (options.arm or ARMS))
        with tempfile.TemporaryDirectory() as scratch:
            home = str(Path(options.home or scratch).absolute())
            seeds = range(options.first_seed, options.first_seed + options.draws)
            results = with_progress(episodes(seeds, arms, options.steps, home), options.jobs)
        if options.rows:
            options.rows.write_text(json.dumps(rows(results, arms), indent=1) + "\n")
        if options.json:
            print(json.dumps(figures(results, arms)))
        else:
            _show(figures(results, arms), rows(results, arms))
        return 0


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _show(found: dict[str, object], draws: Sequence[dict[str, float | None]]) -> None:
    console = Console()
    if draws:
        table = Table(*draws[0])
        for row in draws:
            table.add_row(*("not a number" if value is None else f"{value:g}" for value in row.values()))
        console.print(table)
    for name, value in found.items():
        console.print(f"{name}: {value}")


BENCH = Rates()
