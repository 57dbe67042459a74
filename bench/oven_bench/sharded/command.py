"""`bench sharded`: what gauges cost under FSDP2, and a drill on several ranks, all on the CPU with gloo."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

import click

from oven_bench.intervals import bootstrapped
from oven_bench.sharded import drill, step_cost
from oven_bench.study import Report, Study
from oven_bench.worker_processes import ONE_THREAD
from oven_core.errors import ConfigError


@click.option("--pairs", type=click.IntRange(min=2), default=16, help="Pairs of blocks with and without gauges.")
@click.option("--drill", "start", metavar="START", help="Also train this drill of the recipe grpo.")
@click.option("--ranks", "ranks_text", default="1,2,4", help="Numbers of ranks of the drill.")
@click.option("--steps", type=click.IntRange(min=1), default=120, help="Steps of the drill.")
def bench(pairs: int, start: str | None, ranks_text: str, steps: int) -> Report:
    try:
        counts = [int(count) for count in ranks_text.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks {ranks_text} is not a list of whole numbers; give e.g. 1,2") from None
    os.environ.update(ONE_THREAD, GLOO_SOCKET_IFNAME="lo")
    cost = step_cost.measure(pairs)
    figures = {
        **bootstrapped(cost["ratios"], median).fields("step_ratio"),
        "step_ms": round(cost["step_ms"], 1),
        "step_with_gauges_ms": round(cost["step_with_gauges_ms"], 1),
    }
    rows = []
    if start:
        with tempfile.TemporaryDirectory() as home:
            rows = [drill.run(start, count, steps, Path(home)) for count in counts]
    wrong = [f"{row['start']} on {row['ranks']} ranks: the {name} is false"
             for row in rows for name in ("settings equal on all ranks", "replay equal") if not row[name]]  # fmt: skip
    return Report(figures, rows, failures=wrong)


STUDY = Study("sharded", bench, "--drill drill:lr-low --ranks 1,2")
