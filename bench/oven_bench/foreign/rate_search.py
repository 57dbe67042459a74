"""`bench foreign --tune`: plays the ladder of rates for each model without the controller, and keeps the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from oven_bench.foreign.case_grid import Cell
from oven_bench.foreign.script_run import Run, Task, play
from oven_bench.foreign.tuned_rates import Model, Table, Tuning, missing, model_of, rate_of, read, settle, write


def tune(of: Iterable[Cell], folder: Path, path: Path, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> None:
    """Continues where the file ends; each run is in the file as soon as it is over."""
    began = time.monotonic()
    cells = {model_of(cell, folder): replace(cell, start="tuned") for cell in of}
    table = read(path)
    _drop_stale(table, set(cells))
    table.models += [Tuning(model=model) for model in cells if table.of(model) is None]
    waiting: dict[Future[Run], tuple[Tuning, int]] = {}

    def submit(one: Tuning) -> bool:
        """Whether anything was left to play."""
        cell = cells[one.model]
        script = str(folder / f"{cell.kind.script}.py")
        left = missing(one.tried, one.better)
        for rung, seed in left:
            case = cell.case(seed, rate_of(rung, one.model.centre))
            waiting[pool.submit(play, Task(cell.name, cell.start, script, case, controlled=False))] = (one, rung)
        return bool(left)

    spent = 0.0
    for one in sorted(
        table.models, key=lambda one: -one.model.width
    ):  # the longest first: the last is waited for alone
        if one.model in cells:
            submit(one)
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            (one, rung), run = waiting.pop(future), future.result()
            one.add(rung, run.task.case.seed, run.final, run.better, run.seconds)
            spent += run.seconds
            if not any(other is one for other, _ in waiting.values()) and not submit(one):
                settle(one)
                say(line(one))
            write(table, path)
    took = time.monotonic() - began
    say(f"{len(cells)} models; {spent:.0f} s of CPU time now, in {took:.0f} s; {table.seconds():.0f} s for the file")


def _drop_stale(table: Table, wanted: set[Model]) -> None:
    """What was tried for an earlier version of a script or of a kind."""

    def place(model: Model) -> tuple[str, str, int, float]:
        return model.kind, model.optimizer, model.width, model.init_std

    renewed = {place(model) for model in wanted}
    table.models = [one for one in table.models if one.model in wanted or place(one.model) not in renewed]


def line(one: Tuning) -> str:
    """The best rate, and what came out at each."""
    model = one.model
    tried = "; ".join(
        f"{rate_of(rung, model.centre):g}: "
        + " ".join("diverged" if final is None else f"{final:.4f}" for final in finals.values())
        for rung, finals in sorted(one.tried.items())
    )
    edge = ", the last one tried" if one.on_edge else ""
    sizes = f"{model.kind}/{model.optimizer} width {model.width} std {model.init_std:g}"
    return f"{sizes}: {one.rate:g}{edge} ({tried}) [{one.seconds:.0f} s]"
