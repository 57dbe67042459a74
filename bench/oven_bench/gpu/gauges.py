"""What do the learner's gauges cost on the card, and do they or an attached trainer make the CPU wait for it?

One loop trains with AdamW on random tokens. Blocks of steps with the gauges alternate with blocks without. `share` is
the time of a step with gauges over one without, minus 1. `synchronizations` are counted in a separate pass.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from oven_bench.gpu.sizes import Sizes
from oven_bench.gpu.synchronization import synchronizations
from oven_bench.gpu.trainers import supervised_trainer
from oven_bench.gym.arms.controller import MESH
from oven_bench.intervals import Interval, ratio_of_blocks
from oven_bench.performance.step_arm import SIZES, Size, random_model
from oven_bench.study import Report

SETTLE = 2
"""Steps at the start of a block that are not counted."""
WATCHED = 4
"""Steps in which synchronizations are counted."""


class Loop:
    """A training loop whose steps can be taken with and without the gauges."""

    def __init__(self, sizes: Sizes, size: Size) -> None:
        import torch

        from oven_learner.optim.optimizer_gauges import OptimizerGauges

        torch.manual_seed(1)
        self.model = random_model(size, sizes.device, sizes.dtype).train()
        self.ids = torch.randint(0, SIZES[size]["vocab_size"], (sizes.rows, sizes.tokens), device=sizes.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=sizes.device == "cuda")
        self.gauges = OptimizerGauges(self.optimizer, self.model, publishes=True)

    def forward_and_backward(self) -> None:
        import torch

        self.model(input_ids=self.ids, labels=self.ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def steps(self, count: int, measures: bool) -> None:
        from oven_learner.optim.device_readback import start_transfer

        for _ in range(count):
            self.forward_and_backward()
            numbers = self.gauges.before_step() if measures else {}
            self.optimizer.step()
            if measures:
                self.transfer = start_transfer(numbers | self.gauges.after_step())
            self.optimizer.zero_grad()


def measure(sizes: Sizes) -> Report:
    from oven_learner.optim.optimizer_gauges import ALL_GAUGES

    figures: dict[str, Any] = {}
    failures = []
    for size in sizes.models:
        figures[size] = _loop(sizes, size) | _attached(sizes, size)
        print(f"{size}: {figures[size]}", flush=True)
        if missing := {spec.name for spec in ALL_GAUGES} - set(figures[size]["gauges"]):
            failures.append(f"{size}: not measured: {', '.join(sorted(missing))}")
        if figures[size]["gauges_synchronizing"]:
            failures.append(f"{size}: the gauges wait for the card at {figures[size]['gauges_synchronizing']}")
    return Report(figures, failures=failures)


def _loop(sizes: Sizes, size: Size) -> dict[str, Any]:
    import torch

    loop = Loop(sizes, size)
    wait: Callable[[], object] = torch.cuda.synchronize if sizes.device == "cuda" else lambda: None
    loop.steps(SETTLE, True)
    loop.forward_and_backward()
    alone = [1e3 * _timed(partial(_gauges_alone, loop), wait) for _ in range(sizes.rounds)]
    loop.optimizer.zero_grad()
    plain_peak, gauged_peak = (
        _peak_bytes(partial(loop.steps, 1, measures), sizes.device) for measures in (False, True)
    )
    blocks: dict[bool, list[list[float]]] = {True: [], False: []}
    for number in range(2 * sizes.rounds):
        measures = number % 4 in (1, 2)
        loop.steps(SETTLE, measures)
        blocks[measures].append([_timed(partial(loop.steps, sizes.block, measures), wait)])
    ratio, readings = ratio_of_blocks(blocks[True], blocks[False]), loop.transfer.read()
    synchronizing: Counter[str] = Counter()
    if sizes.device == "cuda":
        for _ in range(WATCHED):
            loop.forward_and_backward()
            synchronizing += synchronizations(partial(_gauges_alone, loop))
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    return {
        "step_ms": round(1e3 * fmean(block[0] for block in blocks[False]) / sizes.block, 3),
        "step_with_gauges_ms": round(1e3 * fmean(block[0] for block in blocks[True]) / sizes.block, 3),
        "gauges_alone_ms": round(median(alone), 3),
        **Interval(ratio.mean - 1, ratio.low - 1, ratio.high - 1).fields("share"),
        "extra_peak_bytes": gauged_peak - plain_peak if sizes.device == "cuda" else None,
        "gauges": readings,
        "gauges_unmeasured": loop.gauges.unmeasured,
        "gauges_synchronizing": dict(synchronizing),
    }  # fmt: skip


def _gauges_alone(loop: Loop) -> None:
    """Measure all gauges and start their copy, without a step."""
    from oven_learner.optim.device_readback import start_transfer

    loop.transfer = start_transfer(loop.gauges.before_step() | loop.gauges.after_step())


def _timed(act: Callable[[], object], wait: Callable[[], object]) -> float:
    wait()
    began = time.perf_counter()
    act()
    wait()
    return time.perf_counter() - began


def _peak_bytes(act: Callable[[], object], device: str) -> int:
    """Call a function, and return the most bytes on the card meanwhile, or 0 on a CPU."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    act()
    return int(torch.cuda.max_memory_allocated())


def _attached(sizes: Sizes, size: Size) -> dict[str, Any]:
    """Synchronizations per step of a supervised Trainer, alone and attached to the mesh and all agents."""
    arms = {"trainer_synchronizing": False, "attached_synchronizing": True}
    if sizes.device == "cpu":
        return dict.fromkeys(arms)
    return {name: _synchronizing_per_step(sizes, size, is_attached) for name, is_attached in arms.items()}


def _synchronizing_per_step(sizes: Sizes, size: Size, is_attached: bool) -> dict[str, float]:
    """FILE:LINE → synchronizations per step. A longer training minus a shorter one, without start and end."""
    short, long = (_train(sizes, size, steps, is_attached) for steps in (WATCHED, 3 * WATCHED))
    return {line: (count - short[line]) / (2 * WATCHED) for line, count in long.items() if count > short[line]}


def _train(sizes: Sizes, size: Size, steps: int, is_attached: bool) -> Counter[str]:
    from oven_learner.hf.attach import attach

    with tempfile.TemporaryDirectory() as folder:
        trainer = supervised_trainer(sizes, size, Path(folder), steps)
        if is_attached:
            attach(trainer, link=MESH.link("synchronizing", Random(1)))
        return synchronizations(trainer.train)
