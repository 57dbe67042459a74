"""Runs a script of another author: alone, or with the real mesh and all installed agents in the same process.

A script is loaded once per process. A recorder reads the learning rates that its optimizers use.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, cast

from oven_bench.foreign.case import Case, Train
from oven_bench.foreign.controller_actions import Actions, RateCheck, rate_checks, read
from oven_bench.foreign.verdicts import SeedResult
from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import show

DEFAULT = Path(__file__).resolve().parents[3] / "tests" / "foreign"
"""The scripts of the checkout."""


def scripts_folder(path: Path | None) -> Path:
    """The folder of the scripts. Raises ConfigError if it has none."""
    folder = (path or DEFAULT).resolve()
    if not any(folder.glob("*.py")):
        raise ConfigError(
            f"there are no training scripts in {folder}; pass --scripts with the checkout's tests/foreign"
        )
    return folder


@dataclass(frozen=True)
class Script:
    """A script's `train`, and its `prepare`, which fills caches of the process and is not measured."""

    train: Train
    prepare: Callable[[Case], None]


@lru_cache
def load(path: Path) -> Script:
    """Raises ConfigError if there is no such file, or no function `train` in it."""
    if not path.is_file():
        raise ConfigError(f"there is no training script {path}; --scripts names the folder of the scripts")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as Python itself does for a script
    spec = importlib.util.spec_from_file_location(f"foreign_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "train"):
        raise ConfigError(f"{path} has no function train(case, link=None, *, attached=True)")
    return Script(cast(Train, module.train), getattr(module, "prepare", lambda case: None))


@contextmanager
def recorded_rates() -> Iterator[list[list[float]]]:
    """One list per optimizer, in the order of their first steps: the first group's learning rate at each step, read by
    torch's own hook right before the step."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    rates: list[list[float]] = []
    by_id: dict[int, tuple[Any, list[float]]] = {}  # holds the optimizer, so that no other one gets its id

    def hook(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in by_id:
            by_id[id(optimizer)] = (optimizer, [])
            rates.append(by_id[id(optimizer)][1])
        by_id[id(optimizer)][1].append(float(optimizer.param_groups[0]["lr"]))

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield rates
    finally:
        handle.remove()


@dataclass(frozen=True)
class Task:
    """One run. Plain values: they travel to a worker process."""

    cell: str
    """Kind and optimizer, e.g. clm-warmup/adamw."""
    start: str
    script: str
    """The script's path."""
    case: Case
    controlled: bool
    logs: str | None = None
    """Folder for the event logs of runs with changes."""

    @property
    def key(self) -> tuple[str, str, Case]:
        """What identifies it in a results file."""
        return self.cell, self.start, self.case

    @property
    def name(self) -> str:
        """The run's name. Agents see it, so it does not reveal the start."""
        return f"foreign-{self.cell.replace('/', '-')}-{self.case.width}-{self.case.seed}"


@dataclass(frozen=True)
class Run:
    """The result of a task. `final` is None if the script raised or diverged; `error` says which."""

    task: Task
    final: float | None
    metric: str
    better: str
    rates: list[list[float]]
    """Per optimizer, per step: the learning rate that was used."""
    seconds: float
    """CPU time."""
    actions: Actions = field(default_factory=Actions)
    """Empty without the controller."""
    error: str = ""


def play(task: Task) -> Run:
    """Run a task. A script that raises is a result, too. Raises ConfigError if the script or the agents cannot be
    loaded."""
    import torch

    from oven_bench.gym.arms.controller import MESH_WITH_GRAPH

    torch.set_num_threads(1)
    script = load(Path(task.script))
    link = MESH_WITH_GRAPH.link(task.name, Random(task.case.seed)) if task.controlled else None
    final: float | None = None
    metric, better, error = "", "", ""
    script.prepare(task.case)
    start = time.process_time()
    with recorded_rates() as rates, contextlib.redirect_stdout(io.StringIO()):
        try:
            result = script.train(task.case, link, attached=task.controlled)
            final, metric, better = result.final, result.metric, result.better
            if not math.isfinite(final):
                final, error = None, f"diverged: {metric} is {final} at the end"
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:300]
    seconds = time.process_time() - start
    actions = read(link.events) if link is not None else Actions()
    if link is not None and task.logs and actions.changes:
        path = Path(task.logs) / f"{task.name}-{task.start}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(event.line() + "\n" for event in link.events))
    return Run(task, final, metric, better, rates, seconds, actions, error)


@dataclass(frozen=True)
class Pair:
    """A run with the controller, and the control. The control is None if the controller did nothing: both would be the
    same training."""

    controlled: Run
    alone: Run | None
    checks: list[RateCheck]

    @property
    def task(self) -> Task:
        return self.controlled.task

    @property
    def seconds(self) -> float:
        return self.controlled.seconds + (self.alone.seconds if self.alone else 0.0)

    @property
    def same_bits(self) -> bool:
        """Whether both used the same rates at each step and ended with the same metric, to the last bit."""
        control = self.alone
        if self.controlled.error:
            return False
        return control is None or (self.controlled.final, self.controlled.rates) == (control.final, control.rates)

    @property
    def result(self) -> SeedResult:
        task, run = self.task, self.controlled
        return SeedResult(
            task.cell,
            task.start,
            task.case.steps,
            len(run.actions.changes),
            run.better or (self.alone.better if self.alone else ""),
            run.final,
            run.final if self.alone is None else self.alone.final,
            len(self.checks),
            sum(not check.matches for check in self.checks),
            run.actions.same_place,
        )

    def line(self) -> str:
        """The case and its result, on one line."""
        case, run, gain = self.task.case, self.controlled, self.result.gain
        model = f"width {case.width} std {case.init_std:g} seed {case.seed}"
        changes = "FAILED" if run.error else f"{len(run.actions.changes)} changes"
        text = f"{self.task.cell} {self.task.start} lr {case.lr:.3g} {model}: {changes}; with {_final(run)}"
        if self.alone is None:
            return text
        text += f", without {_final(self.alone)}"
        return text + (", the same bits" if self.same_bits else "" if gain is None else f" (better by {gain:+.4f})")

    def details(self) -> Iterator[str]:
        """One line per change, and one for each thing to look at."""
        actions = self.controlled.actions
        for change in actions.changes:
            before = f"{show(change.before)} → " if change.before is not None else ""
            value = f"{before}{show(change.after)}"
            yield f"{change.tick:>4} {change.actuator} {value} {change.agent}: {change.reason[:160]}"
        for check in self.checks:
            if not check.matches:
                yield (
                    f"MISMATCH: the step after tick {check.tick} (scale {check.scale:g}) used the rate "
                    f"{check.used:.4g}; schedule × scale is {check.expected:.4g}"
                )
        yield from (f"not applied: {text[:160]}" for text in actions.not_applied)
        if actions.same_place > 1:
            yield f"{actions.same_place} rollbacks to one step without a better held-out reading in between"
        if actions.cannot_fire:
            yield f"cannot fire: {', '.join(actions.cannot_fire)}"


def play_pair(task: Task, both: bool = False) -> Pair:
    """Run a task with the controller and without it. With `both`, also if the controller did nothing.

    An evaluation that an agent asked for may draw random numbers, so it counts as something done.
    """
    controlled = play(task)
    if not (both or controlled.actions.changes or controlled.actions.measurements or controlled.error):
        return Pair(controlled, None, [])
    alone = play(replace(task, controlled=False))
    return Pair(controlled, alone, rate_checks(controlled.actions, controlled.rates, alone.rates))


def _final(run: Run) -> str:
    return run.error if run.final is None else f"{run.final:.4f}"
