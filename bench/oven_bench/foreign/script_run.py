"""One arm of one case in this process: the script alone, or the script with the real mesh and all installed agents."""

from __future__ import annotations

import contextlib
import io
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from oven_bench.foreign.case import Case
from oven_bench.foreign.controller_actions import Reading, read
from oven_bench.foreign.script_loader import load, one_thread, recorded_rates


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
    one_thread()
    import torch

    from oven_bench.gym.arms.controller import MESH_KG

    torch.set_num_threads(1)
    script = load(Path(task.script))
    link = MESH_KG.link(task.name, Random(task.case.seed)) if task.controlled else None
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
