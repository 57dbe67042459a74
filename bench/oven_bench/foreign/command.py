"""`bench foreign`: does the controller, in `auto`, do harm on training scripts that are not ours?

Each case is a script with an optimizer, a model size and a start: the tuned rate, ten times it, a tenth of it. It is
played with the real mesh and all installed agents, in lockstep in the trainer's process, and without the controller,
from the same seed. Where the controller did nothing both are the same training, and it is played once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from oven_bench.foreign.cells import KINDS, STARTS, Cell, cells
from oven_bench.foreign.pair import Pair, pair
from oven_bench.foreign.play import Task
from oven_bench.foreign.results import ResultsFile, header, key
from oven_bench.foreign.script import one_thread, scripts_folder
from oven_bench.foreign.tune import tune
from oven_bench.foreign.tuned import FILE, model_of, read
from oven_bench.foreign.verdicts import rows, table, totals
from oven_bench.workers import workers
from oven_controller.errors import ConfigError

QUICK_STEPS = 100
FIRST_SEEDS = "100"
"""From 100 on: seeds 1 to 3 are kept for the evidence, and nothing is developed on them."""


class Foreign:
    """The bench behind the entry point `foreign`."""

    summary = "training scripts that are not ours, with and without the controller: does it do harm?"

    def run(self, args: list[str]) -> int:
        options = _parser(self.summary).parse_args(args)
        folder = scripts_folder(options.scripts)
        if options.tune:
            if options.steps or options.quick or options.lr:
                raise ConfigError("--tune goes by each kind's own steps; leave out --steps, --quick and --lr")
            one_thread()
            with workers(options.jobs) as pool:
                tune(_sized(options, list(STARTS)), folder, folder / FILE, pool, lambda text: print(text, flush=True))
            return 0
        begun = time.monotonic()
        wanted = tasks(options)
        kept = ResultsFile(options.out, header(folder, _settings(options))) if options.out else None
        pairs = [one for one in kept.pairs if key(one.task) in set(map(key, wanted))] if kept else []
        left = [task for task in wanted if not kept or key(task) not in kept.done]
        if pairs:
            print(f"{len(pairs)} of {len(wanted)} were in {options.out} already")
        for one in measure(left, options.jobs, options.both):
            pairs.append(one)
            if kept:
                kept.append(one)
            print(f"\n{one.line()}  [{time.monotonic() - begun:.0f} s]")
            for text in one.details():
                print(f"  {text}")
            sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in pairs], indent=1) + "\n")
        print("\n" + "\n".join(sums(pairs)))
        return 1 if any(one.controlled.error and not (one.alone and one.alone.error) for one in pairs) else 0


def _parser(summary: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="oven-controller bench foreign",
        description=summary,
        epilog="example: oven-controller bench foreign --only clm,nanogpt-cosine/sgd --starts tuned --seeds 100",
    )
    names = ", ".join(kind.name for kind in KINDS)
    add = parser.add_argument
    add("--only", default="", metavar="KIND,…", help=f"beginnings of KIND/OPTIMIZER; kinds: {names}")
    add("--starts", default=",".join(STARTS), help="of tuned, high (×10), low (/10) (all)")
    add("--seeds", default=FIRST_SEEDS, help=f"e.g. 100,101 or 100-102 ({FIRST_SEEDS})")
    add("--width", type=int, help="of all models, instead of each case's own")
    add("--init-std", type=float, help="of all models, instead of each case's own")
    add("--lr", type=float, help=f"the tuned rate, instead of each case's own from {FILE}")
    add("--steps", type=int, help="of all runs, instead of each case's own")
    add("--quick", action="store_true", help=f"{QUICK_STEPS} steps: it runs; no figure to keep")
    add("--both", action="store_true", help="play the control also where nothing was done")
    add("--jobs", type=int, default=2, help="runs at a time, a thread each (2)")
    add("--scripts", type=Path, help="folder of the scripts (the checkout's tests/foreign)")
    add("--logs", type=Path, metavar="DIR", help="keep the event logs of runs with changes there")
    add("--out", type=Path, metavar="FILE", help="append results as JSON lines; a second call continues there")
    add("--json", type=Path, metavar="FILE", help="write all results there at the end")
    add("--tune", action="store_true", help=f"find the tuned rates, without the controller, and keep them in {FILE}")
    return parser


def tasks(options: argparse.Namespace) -> list[Task]:
    """Raises ConfigError for what is not there. Says so where a rate was never tuned."""
    folder = scripts_folder(options.scripts)
    starts = _split(options.starts)
    if unknown := [start for start in starts if start not in STARTS]:
        raise ConfigError(f"no start {', '.join(unknown)}; --starts takes {', '.join(STARTS)}")
    logs = str(options.logs.absolute()) if options.logs else None
    steps = _settings(options)["steps"]
    tuned = read(folder / FILE)
    found, untuned = [], {}
    for cell in _sized(options, starts):
        rate = options.lr or tuned.rate(model_of(cell, folder))
        if rate is None:
            rate = cell.kind.centres[cell.optimizer]
            untuned[f"{cell.name} width {cell.width} std {cell.init_std:g}: {rate:g}"] = True
        script = str(folder / f"{cell.kind.script}.py")
        for seed in seeds(options.seeds):
            found.append(Task(cell.name, cell.start, script, cell.case(seed, rate, steps), controlled=True, logs=logs))
    for text in untuned:
        print(f"not tuned, the centre of its ladder instead: {text}")
    return sorted(found, key=lambda task: -task.case.width)  # the longest first: the last is waited for alone


def seeds(text: str) -> list[int]:
    """ "1,3-5" → [1, 3, 4, 5]. Raises ConfigError."""
    found: list[int] = []
    for part in _split(text):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"--seeds {text} has {part!r}; give numbers and ranges, e.g. 100,102-104")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ConfigError(f"--seeds {text or '(nothing)'} has no seed; give numbers and ranges, e.g. 100,102-104")
    return found


def measure(of: Sequence[Task], jobs: int, both: bool) -> Iterator[Pair]:
    """Results as they come."""
    one_thread()  # the workers have it from here, before they import torch
    with workers(jobs) as pool:
        for future in as_completed([pool.submit(pair, task, both) for task in of]):
            yield future.result()


def sums(pairs: Sequence[Pair]) -> list[str]:
    """The verdicts, and what is counted over all runs."""
    played = [one.played for one in sorted(pairs, key=_place)]
    lines = [*table(rows(played)), "", *totals(played)]
    if failed := sum(bool(one.controlled.error) for one in pairs):
        lines.append(f"FAILED or diverged under the controller: {failed} of {len(pairs)} runs")
    if alone := sum(bool(one.alone and one.alone.error) for one in pairs):
        lines.append(f"failed or diverged without it: {alone}")
    return [*lines, f"CPU time: {sum(one.seconds for one in pairs):.0f} s"]


def _place(one: Pair) -> tuple[int, int, int]:
    """Where its cell stands among all cells."""
    order = [(cell.start, cell.name) for cell in cells()]
    return list(STARTS).index(one.task.start), order.index((one.task.start, one.task.cell)), one.task.case.seed


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options that change what is played, for the header of a results file."""
    steps = options.steps or (QUICK_STEPS if options.quick else None)
    return {
        "steps": steps,
        "width": options.width,
        "init_std": options.init_std,
        "lr": options.lr,
        "both": options.both,
    }


def _sized(options: argparse.Namespace, starts: Sequence[str]) -> list[Cell]:
    """The cells that the options name, in the sizes that they give."""
    return [
        replace(cell, width=options.width or cell.width, init_std=options.init_std or cell.init_std)
        for cell in cells(_split(options.only), starts)
    ]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


BENCH = Foreign()
