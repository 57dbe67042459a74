"""`bench configurations`: does attaching in `observe` change any bit of a training?

Each configuration is trained twice from the same seed in one process: alone, and attached in `observe` with the real
mesh and all installed agents in lockstep. Compared bit for bit are the log history, all weights, the optimizer, the
schedule, the trainer's state, the random generators and the checkpoints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from oven_bench.bench_command import Bench, Jobs, comma_separated
from oven_bench.configurations.comparison import WRONG, Result, play_named, quiet
from oven_bench.configurations.configuration import DEFAULT, load
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError


def chosen(table: Path, only: str) -> list[str]:
    """Names that begin with one of `only`; all without it. Raises ConfigError if none does."""
    quiet()  # the table imports torch
    names = [one.name for one in load(table)]
    prefixes = tuple(comma_separated(only))
    found = [name for name in names if not prefixes or name.startswith(prefixes)]
    if not found:
        raise ConfigError(f"nothing begins with {' or '.join(prefixes)}; --list prints the names")
    return found


def measure(table: Path, names: Sequence[str], jobs: int) -> Iterator[Result]:
    """Results as they come. A configuration that takes its process down fails, and so do those that waited for it."""
    quiet()  # the workers have it from here, before they import torch
    with workers(jobs) as pool:
        futures: dict[Future[Result], str] = {pool.submit(partial(play_named, table, name)): name for name in names}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield Result(futures[future], "failed", "the process ended")


def status(results: Sequence[Result]) -> int:
    """The exit status: 1 when any configuration differs or fails, or none was compared."""
    wrong = any(one.outcome in WRONG for one in results)
    return int(wrong or not any(one.outcome == "equal" for one in results))


def sums(results: Sequence[Result]) -> list[str]:
    """Lines over all configurations."""
    equal = [one for one in results if one.outcome == "equal"]
    ran = len(equal) + sum(one.outcome in WRONG for one in results)
    lines = [f"{len(equal)} of {ran} configurations are bit-equal alone and attached in observe"]
    for outcome in (*WRONG, "differs on purpose", "cannot run here"):
        names = [one.name for one in results if one.outcome == outcome]
        lines += [f"{outcome}: {', '.join(names)}"] if names else []
    if still := [one.name for one in equal if not one.gradient]:
        lines.append(f"equal, but no gradient was observed: {', '.join(still)}")
    ticks, votes, barred = (sum(getattr(one, name) for one in results) for name in ("ticks", "votes", "barred"))
    lines.append(f"{ticks} steps observed, {votes} votes, {barred} decisions turned down because of observe")
    return lines


def bench(
    only: Annotated[
        str, Option(metavar="PREFIX,…", help="Beginnings of names, e.g. grpo/loss.", show_default="all")
    ] = "",
    listed: Annotated[bool, Option("--list", help="Print the names, and train nothing.")] = False,
    jobs: Jobs = 2,
    table: Annotated[
        Path, Option(help="The checkout's tests/foreign/trl_configurations.", show_default=False)
    ] = DEFAULT,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write all results there.")] = None,
) -> int:
    names = chosen(table, only)
    if listed:
        print("\n".join(names))
        return 0
    began, results = time.monotonic(), []
    for one in measure(table, names, jobs):
        results.append(one)
        print(one.line(), flush=True)
    if json_file:
        json_file.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    print("\n" + "\n".join(sums(results)) + f"\n{time.monotonic() - began:.0f} s")
    return status(results)


BENCH = Bench(
    "configurations",
    bench,
    "TRL's and transformers' trainers, alone and attached in observe: are both the same bits?",
    "--only grpo/loss,dpo --jobs 2",
)
