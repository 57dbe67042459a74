"""`bench foreign`: does the controller, in `auto`, do harm on training scripts that are not ours?

Each case is a script with an optimizer, a model size and a start: the tuned rate, ten times it, a tenth of it. It is
played with the real mesh and all installed agents, in lockstep in the trainer's process, and without the controller,
from the same seed. Where the controller did nothing both are the same training, and it is played once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Jobs, comma_separated, seed_list
from oven_bench.foreign.case_grid import KINDS, STARTS, Cell, cells
from oven_bench.foreign.paired_run import Pair, pair
from oven_bench.foreign.pairs_file import ResultsFile, header, key
from oven_bench.foreign.script_run import Task, one_thread, scripts_folder
from oven_bench.foreign.tuned_rates import FILE, model_of, read, tune
from oven_bench.foreign.verdicts import rows, table, totals
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError

QUICK_STEPS = 100
OWN = "each case's own"
FIRST_SEEDS = "100"
"""From 100 on: seeds 1 to 3 are kept for the evidence, and nothing is developed on them."""


@dataclass(frozen=True)
class Options:
    """What is played. None: each case's own."""

    only: str = ""
    starts: str = ",".join(STARTS)
    seeds: str = FIRST_SEEDS
    width: int | None = None
    init_std: float | None = None
    lr: float | None = None
    steps: int | None = None
    both: bool = False
    scripts: Path | None = None
    logs: Path | None = None

    def header(self) -> dict[str, Any]:
        """The options that change what is played, for the header of a results file."""
        return {
            "steps": self.steps,
            "width": self.width,
            "init_std": self.init_std,
            "lr": self.lr,
            "both": self.both,
        }

    def sized(self, starts: Sequence[str]) -> list[Cell]:
        """The cells that the options name, in the sizes that they give."""
        return [
            replace(cell, width=self.width or cell.width, init_std=self.init_std or cell.init_std)
            for cell in cells(comma_separated(self.only), starts)
        ]


def tasks(options: Options) -> list[Task]:
    """Raises ConfigError for what is not there. Says so where a rate was never tuned."""
    folder = scripts_folder(options.scripts)
    starts = comma_separated(options.starts)
    if unknown := [start for start in starts if start not in STARTS]:
        raise ConfigError(f"no start {', '.join(unknown)}; --starts takes {', '.join(STARTS)}")
    logs = str(options.logs.absolute()) if options.logs else None
    tuned = read(folder / FILE)
    found, untuned = [], {}
    for cell in options.sized(starts):
        rate = options.lr or tuned.rate(model_of(cell, folder))
        if rate is None:
            rate = cell.kind.centres[cell.optimizer]
            untuned[f"{cell.name} width {cell.width} std {cell.init_std:g}: {rate:g}"] = True
        script = str(folder / f"{cell.kind.script}.py")
        cases = [cell.case(seed, rate, options.steps) for seed in seed_list(options.seeds)]
        found += [Task(cell.name, cell.start, script, case, controlled=True, logs=logs) for case in cases]
    for text in untuned:
        print(f"not tuned, the centre of its ladder instead: {text}")
    return sorted(found, key=lambda task: -task.case.width)  # the longest first: the last is waited for alone


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


def bench(
    only: Annotated[
        str,
        Option(
            metavar="KIND,…", help=f"Beginnings of KIND/OPTIMIZER; kinds: {', '.join(kind.name for kind in KINDS)}."
        ),
    ] = "",
    starts: Annotated[str, Option(help="Of tuned, high (×10), low (/10).")] = ",".join(STARTS),
    seeds: Annotated[str, Option(help="E.g. 100,101 or 100-102.")] = FIRST_SEEDS,
    width: Annotated[int | None, Option(help="Of all models.", show_default=OWN)] = None,
    init_std: Annotated[float | None, Option(help="Of all models.", show_default=OWN)] = None,
    lr: Annotated[float | None, Option(help="The tuned rate.", show_default=f"{OWN}, from {FILE}")] = None,
    steps: Annotated[int | None, Option(help="Of all runs.", show_default=OWN)] = None,
    quick: Annotated[bool, Option("--quick", help=f"{QUICK_STEPS} steps: it runs; no figure to keep.")] = False,
    both: Annotated[bool, Option("--both", help="Play the control also where nothing was done.")] = False,
    jobs: Jobs = 2,
    scripts: Annotated[
        Path | None, Option(help="Folder of the scripts.", show_default="the checkout's tests/foreign")
    ] = None,
    logs: Annotated[Path | None, Option(metavar="DIR", help="Keep the event logs of runs with changes there.")] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Append results as JSON lines; a second call continues there.")
    ] = None,
    json_file: Annotated[
        Path | None, Option("--json", metavar="FILE", help="Write all results there at the end.")
    ] = None,
    tuning: Annotated[
        bool, Option("--tune", help=f"Find the tuned rates, without the controller, and keep them in {FILE}.")
    ] = False,
) -> int:
    folder = scripts_folder(scripts)
    played = steps or (QUICK_STEPS if quick else None)
    options = Options(only, starts, seeds, width, init_std, lr, played, both, folder, logs)
    if tuning:
        if played or lr:
            raise ConfigError("--tune goes by each kind's own steps; leave out --steps, --quick and --lr")
        one_thread()
        with workers(jobs) as pool:
            tune(options.sized(list(STARTS)), folder, folder / FILE, pool, lambda text: print(text, flush=True))
        return 0
    pairs = _played(tasks(options), options, jobs, out)
    if json_file:
        json_file.write_text(json.dumps([asdict(one) for one in pairs], indent=1) + "\n")
    print("\n" + "\n".join(sums(pairs)))
    return 1 if any(one.controlled.error and not (one.alone and one.alone.error) for one in pairs) else 0


def _played(wanted: Sequence[Task], options: Options, jobs: int, out: Path | None) -> list[Pair]:
    """Those that the file has, and the rest, each printed as it comes."""
    begun = time.monotonic()
    kept = ResultsFile(out, header(scripts_folder(options.scripts), options.header())) if out else None
    pairs = [one for one in kept.pairs if key(one.task) in set(map(key, wanted))] if kept else []
    left = [task for task in wanted if not kept or key(task) not in kept.done]
    if pairs:
        print(f"{len(pairs)} of {len(wanted)} were in {out} already")
    for one in measure(left, jobs, options.both):
        pairs.append(one)
        if kept:
            kept.append(one)
        print(f"\n{one.line()}  [{time.monotonic() - begun:.0f} s]")
        for text in one.details():
            print(f"  {text}")
        sys.stdout.flush()
    return pairs


BENCH = Bench(
    "foreign",
    bench,
    "training scripts that are not ours, with and without the controller: does it do harm?",
    "--only clm,nanogpt-cosine/sgd --starts tuned --seeds 100",
)
