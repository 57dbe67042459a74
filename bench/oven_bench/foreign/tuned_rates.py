"""The tuned rates: a ladder of rates is played without the controller for each model, and the file keeps what came out.

The ladder has four rungs, a factor of 3 apart: a third of the centre, the centre, 3 and 9 times it. While the best rate
is on an edge, one more rung is added there. The best is the one with the best mean of the final held-out metric over
the seeds; a rate at which a run diverged is worse than any other.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_bench.foreign.case import Optimizer, Schedule
from oven_bench.foreign.case_grid import Cell
from oven_bench.foreign.script_run import Run, Task, digest, play
from oven_core.errors import ConfigError
from oven_core.files import write_atomic

FILE = "tuned.json"
"""In the scripts' folder."""
SEEDS = (900, 901)
"""Nothing is reported on them."""
FACTOR = 3.0
FIRST_RUNGS = (-1, 0, 1, 2)
"""Powers of FACTOR, times the centre."""
MOST_RUNGS = 8
"""Then the best may be at an edge, and the file says so."""


class Model(BaseModel):
    """All that the tuned rate of a cell depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    optimizer: Optimizer
    width: int
    init_std: float
    schedule: Schedule
    warmup: float
    steps: int
    centre: float
    script: str
    """The digest of its code."""


class Tuning(BaseModel):
    """What was tried for a model."""

    model_config = ConfigDict(extra="forbid")

    model: Model
    better: Literal["up", "down"] = "down"
    tried: dict[int, dict[int, float | None]] = Field(default_factory=dict)
    """Rung → seed → final held-out metric; None of a run that diverged."""
    rate: float | None = None
    """The best one's, once it is known."""
    on_edge: bool = False
    seconds: float = 0.0
    """Of CPU time."""

    def add(self, rung: int, seed: int, final: float | None, better: str, seconds: float) -> None:
        """A run's result. A run that failed does not know which way is better."""
        self.tried.setdefault(rung, {})[seed] = None if final is None else round(final, 5)
        self.better = "up" if better == "up" else "down" if better == "down" else self.better
        self.seconds = round(self.seconds + seconds, 1)


class Table(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid")

    seeds: tuple[int, ...] = SEEDS
    factor: float = FACTOR
    models: list[Tuning] = Field(default_factory=list)

    def of(self, model: Model) -> Tuning | None:
        return next((one for one in self.models if one.model == model), None)

    def rate(self, model: Model) -> float | None:
        """The tuned one, if it was found."""
        found = self.of(model)
        return found.rate if found else None

    def seconds(self) -> float:
        return sum(one.seconds for one in self.models)


def model_of(cell: Cell, folder: Path) -> Model:
    kind = cell.kind
    return Model(
        kind=kind.name,
        optimizer=cell.optimizer,
        width=cell.width,
        init_std=cell.init_std,
        schedule=kind.schedule,
        warmup=kind.warmup,
        steps=kind.steps,
        centre=kind.centres[cell.optimizer],
        script=digest(folder / f"{kind.script}.py"),
    )


def rate_of(rung: int, centre: float) -> float:
    """To three digits, so that the file reads well."""
    return float(f"{centre * FACTOR**rung:.3g}")


def mean(finals: Sequence[float | None], better: str) -> float:
    """Of the final metrics, negated where lower is better; −inf where a run diverged."""
    known = [value for value in finals if value is not None]
    if not known or len(known) < len(finals):
        return -math.inf
    return fmean(known) if better == "up" else -fmean(known)


def best_rung(tried: Mapping[int, Mapping[int, float | None]], better: str) -> int:
    """Of rungs as good as each other the lowest."""
    scores = {rung: mean(list(finals.values()), better) for rung, finals in sorted(tried.items())}
    return max(scores, key=lambda rung: (scores[rung], -rung))


def missing(tried: Mapping[int, Mapping[int, float | None]], better: str) -> list[tuple[int, int]]:
    """The next (rung, seed) to play; empty when the best is known."""
    rungs = set(FIRST_RUNGS) | set(tried)
    left = [(rung, seed) for rung in sorted(rungs) for seed in SEEDS if seed not in tried.get(rung, {})]
    if left or len(rungs) >= MOST_RUNGS:
        return left
    best = best_rung(tried, better)
    beyond = {min(rungs): best - 1, max(rungs): best + 1}.get(best)
    return [] if beyond is None else [(beyond, seed) for seed in SEEDS]


def settle(one: Tuning) -> None:
    """Writes down the best rate, once nothing is missing."""
    best = best_rung(one.tried, one.better)
    one.rate, one.on_edge = rate_of(best, one.model.centre), best in (min(one.tried), max(one.tried))


def read(path: Path) -> Table:
    """Empty where there is no file. Raises ConfigError if it is not a table, or was made with another ladder."""
    if not path.is_file():
        return Table()
    try:
        table = Table.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ConfigError(f"{path} is not a table of tuned rates of this version; delete it and run --tune") from error
    if (table.seeds, table.factor) != (SEEDS, FACTOR):
        raise ConfigError(f"{path} was made on other seeds or another ladder; delete it and run --tune")
    return table


def write(table: Table, path: Path) -> None:
    """As a whole: a search that is cut off leaves the file of its last finished run."""
    head = json.dumps({"seeds": table.seeds, "factor": table.factor})[:-1]
    models = ",\n".join(one.model_dump_json() for one in table.models)  # a line each
    write_atomic(path, f'{head}, "models": [\n{models}\n]}}\n')


def tune(of: Iterable[Cell], folder: Path, path: Path, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> int:
    """Continues where the file ends; each run is in the file as soon as it is over. Returns the number of models."""
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
    return len(cells)


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
