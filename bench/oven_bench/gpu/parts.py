"""The parts of `bench gpu`, in the order of their value, and the functions that measure them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from oven_bench.gpu.sizes import Sizes
from oven_bench.study import Report
from oven_core.errors import ConfigError
from oven_core.protocol.rules import Autonomy

ROOT: Final = Path(__file__).resolve().parents[3]
DEVICE_TESTS: Final = "tests/unit/learner/test_devices.py"


@dataclass(frozen=True)
class Part:
    """A part in its own process. `limit_s` is its longest time on a card."""

    name: str
    about: str
    limit_s: float
    is_timed: bool
    """Whether it measures times, so that nothing else may run next to it."""
    measure: Callable[[Sizes], Report]


def _module(name: str) -> Callable[[Sizes], Report]:
    """The function `measure` of a module here, which is imported when it runs, because it imports torch."""

    def measure(sizes: Sizes) -> Report:
        report: Report = import_module(f"oven_bench.gpu.{name}").measure(sizes)
        return report

    return measure


def _steps(autonomy: Autonomy) -> Callable[[Sizes], Report]:
    """`bench step` on the card."""

    def measure(sizes: Sizes) -> Report:
        from oven_bench.performance import step

        with tempfile.TemporaryDirectory() as cache:
            figures = asyncio.run(step.measure(sizes.order(cache), sizes.rounds, sizes.block, autonomy))
        is_wrong = autonomy == "observe" and not figures["same_tokens"]
        return Report(figures, failures=["the arms did not train on the same number of tokens"] if is_wrong else [])

    return measure


def _teachers(sizes: Sizes) -> Report:
    """`bench teachers` with these sizes, in one process. Its bars are shares of float32, so none applies."""
    from oven_bench.performance import teachers

    figures: dict[str, Any] = {}
    for megabytes in sizes.teacher_megabytes:
        for form in teachers.FORMS:
            name = f"{megabytes:g} MB in float32, {form}"
            figures[name] = teachers.measure(form, megabytes, 3, sizes.dtype)
            print(f"{name}: {figures[name]}", flush=True)
    return Report(figures)


def _tests(sizes: Sizes) -> Report:
    """The unit tests that run on every device of the machine. Another version's warnings do not make them fail."""
    if not (ROOT / DEVICE_TESTS).is_file():
        raise ConfigError(f"there is no {DEVICE_TESTS} in {ROOT}; run this bench in a checkout")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "-W", "default", DEVICE_TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, flush=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not failures:
        failures = [f"pytest ended with code {done.returncode}: {last}"]
    return Report({"counts": counts, "summary": last}, failures=failures)


PARTS: Final[Mapping[str, Part]] = {
    part.name: part
    for part in (
        Part("bits", "attached in observe ends in the same bits", 150, False, _module("bits")),
        Part("steps", "step time attached in observe against plain", 150, True, _steps("observe")),
        Part("gauges", "cost of the gauges, and waits for the card", 80, True, _module("gauges")),
        Part("snapshots", "seconds and bytes of a snapshot, and bits after a restore", 120, True, _module("snapshots")),
        Part("steering", "decisions applied and read back, and the replay", 100, False, _module("steering")),
        Part("drill", "a drill repaired by the whole stack", 200, False, _module("drill")),
        Part("teachers", "quantised and offloaded teachers", 150, True, _teachers),
        Part("tests", "unit tests on the card", 120, False, _tests),
        Part("steps-auto", "step time attached in auto against plain", 150, True, _steps("auto")),
    )
}
