"""Does attaching in `observe` change any bit on the card?

As in `bench configurations`: the same training alone and attached to the real mesh and all agents. Here it also runs
alone a second time. If that differs, the card's kernels are not repeatable, and the comparison would show nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from oven_bench.configurations.comparison import SEED, Result, attachment, compared, trained
from oven_bench.configurations.configuration import Configuration
from oven_bench.gpu.sizes import Sizes
from oven_bench.gpu.trainers import grpo_trainer, repeatable, supervised_trainer
from oven_bench.gym.arms.controller import MeshArm
from oven_bench.study import Report

_SEPARATORS = str.maketrans("/.", "--")
"""Replaces characters that the name of a run cannot have."""


def measure(sizes: Sizes) -> Report:
    from oven_bench.configurations.bitwise_diff import first_difference

    repeatable()
    figures: dict[str, Any] = {}
    failures = []
    for name, make in _trainers(sizes).items():
        began = time.monotonic()
        configuration = Configuration(name, make)
        alone, _ = trained(configuration, lambda trainer: None)
        again, _ = trained(configuration, lambda trainer: None)
        control = first_difference(alone, again)
        del again
        link = MeshArm("mesh+kg+observe", with_graph=True, autonomy="observe").link(
            name.translate(_SEPARATORS), Random(SEED)
        )
        attached, steps = trained(configuration, attachment(link))
        result = compared(partial(Result, name), link, alone, attached, steps)
        figures[name] = {
            "attached": result.outcome,
            "alone_again": "equal" if control is None else "differs",
            "first_difference": result.why or (str(control) if control else ""),
            "values": result.compared,
            "ticks": result.ticks,
            "votes": result.votes,
            "decisions_turned_down": result.barred,
            "largest_gradient_norm": result.gradient,
            "seconds": round(time.monotonic() - began, 1),
        }
        print(f"{name}: {figures[name]}", flush=True)
        if control is not None:
            failures.append(f"{name}: two trainings alone differ, so nothing was compared: {control}")
        elif result.outcome != "equal":
            failures.append(f"{name}: {result.outcome}: {result.why}")
        elif not result.gradient:
            failures.append(f"{name}: every gradient was 0, so nothing was trained")
    return Report(figures, failures=failures)


def _trainers(sizes: Sizes) -> dict[str, Callable[[Path], Any]]:
    largest = sizes.models[-1]

    def supervised(folder: Path) -> Any:
        return supervised_trainer(sizes, largest, folder, sizes.steps, "eager")

    return {
        f"grpo/{sizes.generating[0]}": lambda folder: grpo_trainer(sizes, folder, sizes.steps),
        f"trainer/{largest}": supervised,
    }
