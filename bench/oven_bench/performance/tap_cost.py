"""Measures what the tap costs: `oven-controller run --tap -- python -m oven_bench.performance.tap_cost`.

The logger only turns its data into JSON, as loggers do. Calls with and without the tap alternate, and the tap costs the
difference. Each step computes for about 5 ms and logs 20 numbers in one call and 5 in calls of their own.
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
LOGGER = '''
import json
class Tracking:
    def log(self, data, step, backend=None):
        json.dumps(data)
'''
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
        p50, p99 = median(times) / 1000, float(np.percentile(times, 99)) / 1000
        print(f"{name}: {len(times)} calls, median {p50:.1f} µs, p99 {p99:.1f} µs, maximum {max(times) / 1000:.0f} µs")
    return 0


def _time(call: Callable[..., Any], *args: Any) -> int:
    start = time.perf_counter_ns()
    call(*args)
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    sys.exit(main())
