"""`bench pairs`: from one start, does a run under the swarm end higher than the same run without a controller?

By default from a drill, `drill:weak-teacher`: a strong KL term to a teacher of an eighth of the policy's size. A drill
was made wrong on purpose; it says whether the agents see such a fault and have a remedy, not how often one is met. From
`tuned` it says what the agents cost where nothing is wrong. Each seed has its own warm-up policy, teachers and prompts,
which both arms share (paired). The swarm is the real stack, all agents on, in lockstep.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from oven_bench.statistics import paired, word
from oven_bench.training.episode import Episode, Result
from oven_bench.training.starts import with_progress
from oven_learner.recipes.grpo.starts import NAMES

ARMS = ("swarm", "alone")
SMALLEST = 0.02
"""The smallest difference of held-out accuracy that is of interest."""
START = "drill:weak-teacher"
QUICK: tuple[tuple[str, object], ...] = (
    ("lengths", [1, 2]), ("train_prompts", 20), ("hidden", 16), ("layers", 1), ("heads", 2), ("ffn", 32),
    ("sft_steps", 60), ("sft_batch", 16), ("sft_learning_rate", 1e-2), ("prompts_per_step", 4), ("group_size", 4),
    ("eval_every", 2),
)  # fmt: skip
"""The recipe's settings at sizes that take seconds; what comes out says that the bench runs, and nothing else."""


def _name(start: str) -> str:
    """Of the runs: agents see it, and it must not tell them where a run began."""
    return f"pair-{sha256(start.encode()).hexdigest()[:6]}"


def figures(results: Sequence[Result]) -> dict[str, object]:
    """The flat object of `--json`: final held-out accuracies (greedy, mean over levels, 0 to 1), swarm minus alone
    with a 95 % t interval over seeds and the word for it, and the changes that the swarm applied per run."""
    arms = {arm: [accuracy for _, accuracy, _ in _of(results, arm)] for arm in ARMS}
    found = paired(arms["swarm"], arms["alone"])
    return {
        "start": results[0].episode.start,
        "seeds": len(arms["swarm"]),
        "mean_swarm": round(fmean(arms["swarm"]), 4),
        "mean_alone": round(fmean(arms["alone"]), 4),
        "difference": round(found.mean, 4),
        "difference_low": round(found.low, 4),
        "difference_high": round(found.high, 4),
        "decisions_per_run": round(fmean(changes for _, _, changes in _of(results, "swarm")), 2),
        "verdict": word(found.low, found.high, SMALLEST),
    }


def _of(results: Sequence[Result], arm: str) -> list[tuple[int, float, int]]:
    """(seed, final accuracy, changes applied), in the order of the seeds."""
    return sorted((r.episode.seed, r.final, r.interventions) for r in results if r.episode.arm == arm)


class Pairs:
    """The bench behind the entry point `pairs`."""

    summary = "final held-out accuracy from one start, seed by seed: swarm against no controller"

    def run(self, args: list[str]) -> int:
        parser = argparse.ArgumentParser(
            prog="oven-controller bench pairs",
            description=self.summary,
            epilog="example: oven-controller bench pairs --start tuned --seeds 5 --json",
        )
        parser.add_argument(
            "--seeds", type=int, default=5, help="runs of each arm (5; about 100 s a seed on two cores)"
        )
        parser.add_argument("--start", choices=NAMES, default=START, help=f"where the runs begin ({START})")
        parser.add_argument("--first-seed", type=int, default=1, help="the first of them (1); the others follow it")
        parser.add_argument("--steps", type=int, default=120, help="gradient steps of each run (120)")
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
        parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs; no figure to keep")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--home", help="keep runs and warm-up cache here; a temporary folder otherwise")
        options = parser.parse_args(args)
        if options.seeds < 2:
            parser.error(f"--seeds {options.seeds} gives no interval; give at least 2")
        with tempfile.TemporaryDirectory() as scratch:
            home = str(Path(options.home or scratch).absolute())
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            sizes = QUICK if options.quick else ()
            episodes = [
                Episode(arm, options.start, seed, options.steps, home, label=_name(options.start), options=sizes)
                for arm in ARMS
                for seed in seeds
            ]
            results = with_progress(episodes, options.jobs)
        if options.json:
            print(json.dumps(figures(results)))
        else:
            _show(results)
        return 0


def _show(results: Sequence[Result]) -> None:
    console = Console()
    table = Table("seed", *ARMS, "changes applied")
    for (seed, swarm, changes), (_, alone, _) in zip(_of(results, "swarm"), _of(results, "alone"), strict=True):
        table.add_row(str(seed), f"{swarm:.3f}", f"{alone:.3f}", str(changes))
    console.print(table)
    for name, value in figures(results).items():
        console.print(f"{name}: {value}")


BENCH = Pairs()
