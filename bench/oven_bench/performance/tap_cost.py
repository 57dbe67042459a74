"""Measures what the tap costs: `oven-controller run --tap -- python -m oven_bench.performance.tap_cost`.

The logger does nothing, so that its call takes as long as the tap. Steps with and without the tap alternate. Each step
computes for about 5 ms, which leaves the caches cold for its first call. Five calls of one number follow. The first
call has 21 numbers, for a logger that takes several: `tap_cost mapping` (wandb, SwanLab, trackio, verl; the default)
and `tap_cost batch` (MLflow). `tap_cost scalar` is TensorBoard.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

STEPS = 4000
CALLS = 6
"""Calls per step."""


class StandIn(NamedTuple):
    """A logger that stores nothing, in the module and the class of a real one."""

    module: str
    owner: str
    method: str
    source: str
    arguments: Callable[[Mapping[str, float], int], tuple[Any, ...]]
    """The arguments of a call, from the values and the step."""


class Metric(NamedTuple):
    """As MLflow's."""

    key: str
    value: float
    timestamp: int
    step: int


STAND_INS = {
    "mapping": StandIn(
        "verl.utils.tracking",
        "Tracking",
        "log",
        "class Tracking:\n    def log(self, data, step, backend=None):\n        pass\n",
        lambda values, step: (values, step),
    ),
    "scalar": StandIn(
        "tensorboardX.writer",
        "SummaryWriter",
        "add_scalar",
        "class SummaryWriter:\n"
        "    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):\n        pass\n"
        "    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):\n        pass\n",
        lambda values, step: (*next(iter(values.items())), step),
    ),
    "batch": StandIn(
        "mlflow.tracking.client",
        "MlflowClient",
        "log_batch",
        "class MlflowClient:\n"
        "    def log_metric(self, run_id, key, value, timestamp=None, step=None):\n        pass\n"
        "    def log_batch(self, run_id, metrics=(), params=(), tags=()):\n        pass\n",
        lambda values, step: ("run", [Metric(name, value, 0, step) for name, value in values.items()]),
    ),
}


def main() -> int:
    """Print the percentiles in µs. Return 1 if the process is not tapped, and 2 for an unknown logger."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "mapping"
    if kind not in STAND_INS:
        print(f"error: unknown kind of logger {kind}; choose one of {', '.join(STAND_INS)}")
        return 2
    stand_in = STAND_INS[kind]
    logger = _import_class(stand_in)()
    tapped = getattr(logger, stand_in.method)
    untapped = getattr(tapped, "__wrapped__", None)
    if untapped is None:
        print("error: start it with `oven-controller run --tap -- python -m oven_bench.performance.tap_cost`")
        return 1
    weights = np.random.default_rng(0).normal(size=(300, 300))
    tapped_ns: list[int] = []
    floor_ns: list[int] = []
    for step in range(1, STEPS + 1):
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            weights @ weights
        values = {f"train/metric_{number}": 1.0 / (step + number) for number in range(20)}
        logged = [{"train/loss": 1.0 / step} | values, *({f"train/{name}": 0.5} for name in "abcde")]
        calls = [stand_in.arguments(each, step) for each in logged]
        if step % 2:
            tapped_ns += [_time(tapped, *arguments) for arguments in calls]
        else:
            floor_ns += [_time(untapped, logger, *arguments) for arguments in calls]
    for name, times in (("with the tap", tapped_ns), ("without it", floor_ns)):
        first, others = times[::CALLS], [each for index, each in enumerate(times) if index % CALLS]
        print(f"{name}: first call of a step {_describe(first)}; the others {_describe(others)}")
    return 0


def _import_class(stand_in: StandIn) -> Callable[[], Any]:
    *packages, module = stand_in.module.split(".")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, *packages)
        package.mkdir(parents=True)
        (package / f"{module}.py").write_text(stand_in.source)
        sys.path.insert(0, folder)
        imported: Callable[[], Any] = getattr(importlib.import_module(stand_in.module), stand_in.owner)
    return imported


def _describe(times_ns: list[int]) -> str:
    return f"median {median(times_ns) / 1000:.1f} µs, p99 {float(np.percentile(times_ns, 99)) / 1000:.1f} µs"


def _time(call: Callable[..., Any], *args: Any) -> int:
    start = time.perf_counter_ns()
    call(*args)
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    sys.exit(main())
