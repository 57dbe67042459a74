"""`bench pairs`: from one start, does a run under the swarm end higher than the same run without a controller?

By default from a drill, `drill:weak-teacher`: a strong KL term to a teacher of an eighth of the policy's size. A drill
was made wrong on purpose; it says whether the agents see such a fault and have a remedy, not how often one is met. From
`tuned` it says what the agents cost where nothing is wrong. Each seed has its own warm-up policy, teachers and prompts,
which both arms share (paired). The swarm is the real stack, all agents on, in lockstep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from statistics import fmean
from typing import Annotated

from typer import Option

from oven_bench.bench_command import (
    Bench,
    FirstSeed,
    HomeFolder,
    Jobs,
    Json,
    home_folder,
    one_of,
    print_table,
)
from oven_bench.statistics import paired, word
from oven_bench.training.recipe_run import Episode, Result, run_all
from oven_core.errors import ConfigError
from oven_recipes.grpo.settings import NAMES

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


def bench(
    seeds: Annotated[int, Option(help="Runs of each arm; about 100 s a seed on two cores.")] = 5,
    start: Annotated[str, one_of(NAMES, "Where the runs begin.")] = START,
    first_seed: FirstSeed = 1,
    steps: Annotated[int, Option(min=1, help="Gradient steps of each run.")] = 120,
    jobs: Jobs = 2,
    quick: Annotated[bool, Option("--quick", help="Tiny models, to see that it runs; no figure to keep.")] = False,
    as_json: Json = False,
    home: HomeFolder = None,
) -> int:
    if seeds < 2:
        raise ConfigError(f"--seeds {seeds} gives no interval; give at least 2")
    with home_folder(home) as folder:
        sizes = QUICK if quick else ()
        episodes = [
            Episode(arm, start, seed, steps, str(folder), label=_name(start), options=sizes)
            for arm in ARMS
            for seed in range(first_seed, first_seed + seeds)
        ]
        results = run_all(episodes, jobs)
    if as_json:
        print(json.dumps(figures(results)))
    else:
        both = zip(_of(results, "swarm"), _of(results, "alone"), strict=True)
        rows = [
            (str(seed), f"{ours:.3f}", f"{alone:.3f}", str(changes)) for (seed, ours, changes), (_, alone, _) in both
        ]
        print_table(figures(results), ("seed", *ARMS, "changes applied"), rows)
    return 0


BENCH = Bench(
    "pairs",
    bench,
    "final held-out accuracy from one start, seed by seed: swarm against no controller",
    "--start tuned --seeds 5 --json",
)
