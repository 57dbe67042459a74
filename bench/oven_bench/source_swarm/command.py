"""`bench source-swarm`: does the swarm that this project comes from do anything, and does ours?

The source reported 1.1220 bits per byte of one run; a sister run without its swarm and without its graph had the same.
Its decisions set values that nothing read again. Here they act: the recipe `pretrain` on the standard library's own
sources, from the source's start (a graph's scores on 358 tokens scale the embedding and weight the loss at .3,
multi-token prediction at .1, the gradient clip at .3, a schedule that comes down), with every knob live. One
initialisation and one order of batches for a seed; every gradient step counts. Less is better; arms are compared by the
final weights rounded as they are served, since the source's contest scored rounded weights, and beside it by the
weights as they are.

A gain says HELPS, HARMS, NO EFFECT or INCONCLUSIVE by its 95 % interval over seeds. `verdict` is that of ours over the
source's swarm as coded.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter
from typer import Option

from oven_bench.bench_command import (
    Bench,
    GraphFolder,
    HomeFolder,
    Json,
    ResultsFile,
    home_folder,
    one_of,
    print_object,
    seed_list,
)
from oven_bench.progress import progress
from oven_bench.results_file import Kept
from oven_bench.source_swarm.arms import ARMS
from oven_bench.source_swarm.figures import Row, figures
from oven_core.errors import ConfigError

FINAL_SEEDS: Final = "31-35"
"""Played once, when nothing is changed any more. Everything was developed on others."""
QUICK_SEEDS: Final = "1-2"


class MadeWith(BaseModel):
    """The header of a results file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    settings: dict[str, object]
    scores: str
    """SHA-256 of the tokens' scores."""


def bench(
    seeds: Annotated[
        str | None,
        Option(help="Of the runs, e.g. 1-3,7.", show_default=f"{FINAL_SEEDS}; {QUICK_SEEDS} with --quick"),
    ] = None,
    arm: Annotated[list[str] | None, one_of(ARMS, "Arms that are played; all without it.")] = None,
    graph: GraphFolder = None,
    steps: Annotated[int | None, Option(min=9, help="Gradient steps of each run.", show_default="300")] = None,
    quick: Annotated[bool, Option("--quick", help="Tiny runs, to see that it works; no figure to keep.")] = False,
    results: ResultsFile = None,
    as_json: Json = False,
    home: HomeFolder = None,
) -> int:
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    from oven_bench.source_swarm.runs import FULL, QUICK, corpus_scores, play

    base = QUICK if quick else FULL
    size = base if steps is None else replace(base, steps=steps)
    wanted = seed_list(seeds or (QUICK_SEEDS if quick else FINAL_SEEDS))
    if len(wanted) < 2:
        raise ConfigError(f"--seeds {seeds} gives no interval; give at least 2")
    chosen = [ARMS[name] for name in dict.fromkeys(arm or ARMS)]
    with home_folder(home) as folder:
        scores = corpus_scores(size, folder / "cache", graph)
        header = MadeWith(
            steps=size.steps, settings=dict(size.settings), scores=hashlib.sha256(scores.blob).hexdigest()
        )
        kept = Kept(results or folder / "source-swarm.jsonl", header, TypeAdapter(Row))
        rows = {(row.seed, row.arm): row for row in kept.rows}
        left = [(seed, one) for seed in wanted for one in chosen if (seed, one.name) not in rows]
        with progress("runs", max(1, len(left))) as advance:
            for seed, one in left:
                rows[seed, one.name] = row = play(one, seed, size, scores, folder)
                kept.append(row)
                advance(1, f"seed {seed}, {one.name}: {row.served:.4f} bits per byte")
    asked = [rows[seed, one.name] for seed in wanted for one in chosen]
    print_object(figures(asked, {"steps": size.steps, **scores.figures}), as_json)
    return 0


BENCH = Bench(
    "source-swarm",
    bench,
    "the swarm that this project comes from, with knobs that act, against no controller and ours",
    "--results source-swarm.jsonl --json",
    "Arms: " + "; ".join(f"{one.name}: {one.about}" for one in ARMS.values()) + ".",
)
