"""`bench foreign`: does the controller, in `auto`, do harm on training scripts of other authors?

Each case is a script with an optimizer, a model size and a start: the tuned learning rate, ten times it, or a tenth of
it. It runs with the real mesh and all installed agents, in lockstep in the trainer's process, and without the
controller, from the same seed. If the controller changed nothing, both are the same training, which then runs once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
from pydantic import TypeAdapter

from oven_bench.foreign.case_grid import KINDS, STARTS, Cell, cells
from oven_bench.foreign.script_run import Pair, Task, play_pair, scripts_folder
from oven_bench.foreign.tuned_rates import FILE, key, read
from oven_bench.foreign.verdicts import cell_results, totals
from oven_bench.study import (
    PATH,
    Report,
    ResultsFile,
    Study,
    code_digest,
    comma_separated,
    jobs_option,
    package_folders,
    run_tasks,
    seed_list,
)
from oven_core.errors import ConfigError

QUICK_STEPS = 100
OWN = "each case's own"
FIRST_SEEDS = "100"
"""Seeds from 100 on. Seeds 1 to 3 are reserved for published figures, and nothing is developed on them."""
PACKAGES: Final = ("oven_core", "oven_runs", "oven_controller", "oven_agents", "oven_learner", "oven_kg", "oven_bench")
LIBRARIES: Final = ("torch", "transformers", "trl", "accelerate")


@dataclass(frozen=True)
class Options:
    """Which cases to run, and how. None: each case's own value."""

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

    def header(self) -> dict[str, object]:
        """All that the results depend on, for the header of a results file."""
        options = {name: getattr(self, name) for name in ("steps", "width", "init_std", "lr", "both")}
        folders = [*package_folders(PACKAGES), scripts_folder(self.scripts)]
        libraries = {"python": sys.version.split()[0], **{name: version(name) for name in LIBRARIES}}
        # Tuned rates are left out: each case has its own.
        return {"bench": "foreign", "code": code_digest(folders, skip=(FILE,)), "libraries": libraries, **options}

    def sized(self, starts: Sequence[str]) -> list[Cell]:
        """The selected cells with the sizes that the options give."""
        return [
            replace(cell, width=self.width or cell.width, init_std=self.init_std or cell.init_std)
            for cell in cells(comma_separated(self.only), starts)
        ]


def tasks(options: Options) -> list[Task]:
    """The runs with the controller, longest first. Prints which rates were never tuned. Raises ConfigError for an
    unknown start or cell."""
    folder = scripts_folder(options.scripts)
    starts = comma_separated(options.starts)
    if unknown := [start for start in starts if start not in STARTS]:
        raise ConfigError(f"there is no start {', '.join(unknown)}; --starts takes {', '.join(STARTS)}")
    logs = str(options.logs.absolute()) if options.logs else None
    tuned = read(folder)
    made: list[Task] = []
    untuned: dict[str, None] = {}
    for case_cell in options.sized(starts):
        rate = options.lr or tuned.get(key(case_cell))
        if rate is None:
            rate = case_cell.kind.centres[case_cell.optimizer]
            untuned[f"{case_cell.name} width {case_cell.width} std {case_cell.init_std:g}: {rate:g}"] = None
        script = str(folder / f"{case_cell.kind.script}.py")
        cases = [case_cell.case(seed, rate, options.steps) for seed in seed_list(options.seeds)]
        made += [Task(case_cell.name, case_cell.start, script, case, controlled=True, logs=logs) for case in cases]
    for text in untuned:
        print(f"not tuned, so the centre of its range is used: {text}", file=sys.stderr)
    return sorted(made, key=lambda task: -task.case.width)  # nothing else runs while the last one finishes


def report(pairs: Sequence[Pair]) -> Report:
    """The verdict on each cell, and what is counted over all runs."""
    order = [(cell.start, cell.name) for cell in cells()]

    def order_key(pair: Pair) -> tuple[int, int, int]:
        task = pair.task
        return list(STARTS).index(task.start), order.index((task.start, task.cell)), task.case.seed

    results = [pair.result for pair in sorted(pairs, key=order_key)]
    failed = [pair for pair in pairs if pair.controlled.error and not (pair.alone and pair.alone.error)]
    figures: dict[str, Any] = {
        "runs": len(pairs),
        **totals(results),
        "failed_with_controller": sum(bool(pair.controlled.error) for pair in pairs),
        "failed_without_controller": sum(bool(pair.alone and pair.alone.error) for pair in pairs),
        "cpu_s": round(sum(pair.seconds for pair in pairs)),
    }
    return Report(figures, [cell.table_row() for cell in cell_results(results)], [pair.line() for pair in failed])


@click.option(
    "--only",
    default="",
    show_default=False,
    metavar="KIND,…",
    help=f"Prefixes of KIND/OPTIMIZER. Kinds: {', '.join(kind.name for kind in KINDS)}.",
)
@click.option("--starts", default=",".join(STARTS), help="Any of tuned, high (×10), low (/10).")
@click.option("--seeds", default=FIRST_SEEDS, help="E.g. 100,101 or 100-102.")
@click.option("--width", type=int, show_default=OWN, help="Width of all models.")
@click.option("--init-std", type=float, show_default=OWN, help="Initial deviation of all weights.")
@click.option("--lr", type=float, show_default=f"{OWN}, from {FILE}", help="The tuned learning rate.")
@click.option("--steps", type=int, show_default=OWN, help="Steps of all runs.")
@click.option("--quick", is_flag=True, help=f"{QUICK_STEPS} steps, only to check that it runs.")
@click.option("--both", is_flag=True, help="Run the control even if the controller changed nothing.")
@jobs_option()
@click.option("--scripts", type=PATH, show_default="the checkout's tests/foreign", help="Folder of the scripts.")
@click.option("--logs", type=PATH, metavar="DIR", help="Keep the event logs of runs with changes there.")
@click.option(
    "--results", type=PATH, metavar="FILE", help="Append results as JSON lines; a second call continues there."
)
def bench(
    only: str,
    starts: str,
    seeds: str,
    width: int | None,
    init_std: float | None,
    lr: float | None,
    steps: int | None,
    quick: bool,
    both: bool,
    jobs: int,
    scripts: Path | None,
    logs: Path | None,
    results: Path | None,
) -> Report:
    folder = scripts_folder(scripts)
    all_steps = steps or (QUICK_STEPS if quick else None)
    options = Options(only, starts, seeds, width, init_std, lr, all_steps, both, folder, logs)
    wanted = tasks(options)
    file = ResultsFile(results, TypeAdapter(Pair), options.header()) if results else None
    keys = {task.key for task in wanted}
    pairs = [pair for pair in file.rows if pair.task.key in keys] if file else []
    done = {pair.task.key for pair in pairs}
    missing = [task for task in wanted if task.key not in done]
    for pair in run_tasks(partial(play_pair, both=both), missing, jobs, describe=Pair.line):
        pairs.append(pair)
        if file:
            file.append(pair)
        print(pair.line(), *pair.details(), sep="\n  ", file=sys.stderr, flush=True)
    return report(pairs)


STUDY = Study(
    "foreign",
    bench,
    "--only clm,nanogpt-cosine/sgd --starts tuned --seeds 100",
    "Exit code 1: a run failed or diverged with the controller only.",
)
