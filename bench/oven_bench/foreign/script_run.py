"""A foreign script, loaded by its file, and one arm of one case of it in this process: the script alone, or with the
real mesh and all installed agents. A script is loaded once in a process, and under a recorder of the rates used."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import io
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, cast

from oven_bench.foreign.case import Case, Train
from oven_bench.foreign.controller_actions import Reading, read
from oven_core.errors import ConfigError

DEFAULT = Path(__file__).resolve().parents[3] / "tests" / "foreign"
"""In a checkout; an installed package has none."""


def scripts_folder(given: Path | None) -> Path:
    """Raises ConfigError where there are no scripts."""
    folder = (given or DEFAULT).resolve()
    if not any(folder.glob("*.py")):
        raise ConfigError(f"no training scripts in {folder}; pass --scripts with the checkout's tests/foreign")
    return folder


@dataclass(frozen=True)
class Script:
    """`prepare` makes what a script has cached in the process; most scripts have nothing to make."""

    train: Train
    prepare: Callable[[Case], None]


@lru_cache
def load(path: Path) -> Script:
    """Raises ConfigError when there is no such file, or no function `train` in it."""
    if not path.is_file():
        raise ConfigError(f"there is no training script {path}; --scripts names the folder that has it")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as Python itself does for a script that is run
    spec = importlib.util.spec_from_file_location(f"foreign_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "train"):
        raise ConfigError(f"{path} has no function train(case, link=None, *, attached=True)")
    return Script(cast(Train, module.train), getattr(module, "prepare", lambda case: None))


NOT_COUNTED = ("#", "from oven_", "import oven_")
"""Beginnings of lines."""


def digest(path: Path) -> str:
    """16 hex digits of a script's code and that of the scripts beside it that it imports; the same under any Python.
    Imports of this project are left out: where a name is imported from changes no training."""
    text = path.read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(NOT_COUNTED)]
    names = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    beside = sorted(path.with_name(f"{name}.py") for name in names)
    code += [digest(other) for other in beside if other.is_file()]
    return hashlib.blake2b("\n".join(code).encode(), digest_size=8).hexdigest()


@contextmanager
def recorded_rates() -> Iterator[list[list[float]]]:
    """One list per optimizer, in the order of their first steps: the first group's learning rate at each step, read by
    torch's own hook right before the step, no matter who set it."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    found: list[list[float]] = []
    known: dict[int, tuple[Any, list[float]]] = {}  # the optimizer is kept, so that no other gets its id

    def hook(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in known:
            known[id(optimizer)] = (optimizer, [])
            found.append(known[id(optimizer)][1])
        known[id(optimizer)][1].append(float(optimizer.param_groups[0]["lr"]))

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield found
    finally:
        handle.remove()


@dataclass(frozen=True)
class Task:
    """What is to be run. Plain values: it travels to a worker process."""

    cell: str
    """Kind and optimizer, e.g. clm-warmup/adamw."""
    start: str
    script: str
    """The file."""
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
        """The run's. Agents see it, so it does not say whether the rate was made wrong."""
        return f"foreign-{self.cell.replace('/', '-')}-{self.case.width}-{self.case.seed}"


@dataclass(frozen=True)
class Run:
    """The result of a task. `final` is None where the script raised or diverged; `error` says which."""

    task: Task
    final: float | None
    metric: str
    better: str
    rates: list[list[float]]
    """Per optimizer, per step: the rate that was used."""
    seconds: float
    """Of CPU time."""
    reading: Reading = field(default_factory=Reading)
    """Empty without the controller."""
    error: str = ""


def play(task: Task) -> Run:
    """A script that raises is a result, too. Raises ConfigError when the script or the agents cannot be loaded."""
    import torch

    from oven_bench.gym.arms.controller import MESH_WITH_GRAPH

    torch.set_num_threads(1)
    script = load(Path(task.script))
    link = MESH_WITH_GRAPH.link(task.name, Random(task.case.seed)) if task.controlled else None
    final: float | None = None
    metric, better, error = "", "", ""
    script.prepare(task.case)
    began = time.process_time()
    with recorded_rates() as rates, contextlib.redirect_stdout(io.StringIO()):
        try:
            result = script.train(task.case, link, attached=task.controlled)
            final, metric, better = result.final, result.metric, result.better
            if not math.isfinite(final):
                final, error = None, f"diverged: {metric} is {final} at the end"
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:300]
    seconds = time.process_time() - began
    found = read(link.events) if link is not None else Reading()
    if link is not None and task.logs and found.changes:
        path = Path(task.logs) / f"{task.name}-{task.start}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(event.line() + "\n" for event in link.events))
    return Run(task, final, metric, better, rates, seconds, found, error)
