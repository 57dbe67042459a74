"""Measures what the tap costs: `oven-controller run --tap -- python -m oven_bench.performance.tap_cost`.

The logger does nothing, so that its call takes as long as the tap. Steps with and without the tap alternate. Each step
computes for about 5 ms, which leaves the caches cold for its first call, of 21 numbers. Five calls of one follow.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

STEPS = 4000
CALLS = 6
"""Calls per step."""
LOGGER = """
class Tracking:
    def log(self, data, step, backend=None):
        pass
"""
"""A module `verl.utils.tracking` that stores nothing."""


def main() -> int:
    """Print the percentiles in µs. Return 1 if the process is not tapped."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "verl" / "utils").mkdir(parents=True)
        (Path(folder) / "verl" / "utils" / "tracking.py").write_text(LOGGER)
        sys.path.insert(0, folder)
        from verl.utils.tracking import Tracking  # type: ignore[import-not-found]
    untapped = getattr(Tracking.log, "__wrapped__", None)
    if untapped is None:
        print("error: start it with `oven-controller run --tap -- python -m oven_bench.performance.tap_cost`")
        return 1
    logger, weights = Tracking(), np.random.default_rng(0).normal(size=(300, 300))
    tapped_ns: list[int] = []
    floor_ns: list[int] = []
    for step in range(1, STEPS + 1):
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            weights @ weights
        values = {f"train/metric_{number}": 1.0 / (step + number) for number in range(20)}
        calls = [{"train/loss": 1.0 / step} | values, *({f"train/{name}": 0.5} for name in "abcde")]
        if step % 2:
            tapped_ns += [_time(logger.log, data, step) for data in calls]
        else:
            floor_ns += [_time(untapped, logger, data, step) for data in calls]
    for name, times in (("with the tap", tapped_ns), ("without it", floor_ns)):
        first, others = times[::CALLS], [each for index, each in enumerate(times) if index % CALLS]
        print(f"{name}: first call of a step {_describe(first)}; the others {_describe(others)}")
    return 0


def _describe(times_ns: list[int]) -> str:
    return f"median {median(times_ns) / 1000:.1f} µs, p99 {float(np.percentile(times_ns, 99)) / 1000:.1f} µs"


def _time(call: Callable[..., Any], *args: Any) -> int:
    start = time.perf_counter_ns()
    call(*args)
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    sys.exit(main())
