"""Snapshots for rollback on the card: seconds, bytes, and whether a restore gives back every bit.

A Trainer trains, a snapshot is copied, and it trains on. After the restore, all weights, moments and the scheduler must
have the bits of the snapshot, and the same steps must lead to the same weights again.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from oven_bench.gpu.sizes import Sizes
from oven_bench.gpu.trainers import repeatable, supervised_trainer
from oven_bench.performance.step_arm import SIZES, Size
from oven_bench.study import Report

COPIES = 3
STEPS = 3
"""Steps before the snapshot, and after it."""


def measure(sizes: Sizes) -> Report:
    repeatable()
    figures: dict[str, Any] = {}
    failures = []
    for size in sizes.models:
        figures[size] = _copied(sizes, size)
        print(f"{size}: {figures[size]}", flush=True)
        failures += [
            f"{size}: {name} is false" for name in ("restored_bits_equal", "continued_bits_equal")
            if not figures[size][name]
        ]  # fmt: skip
        gc.collect()
    return Report(figures, failures=failures)


def _copied(sizes: Sizes, size: Size) -> dict[str, Any]:
    import torch

    from oven_bench.configurations.bitwise_diff import first_difference
    from oven_learner.hf.trainer_rollback import restore_snapshot, snapshot_size, take_snapshot
    from oven_learner.ranks import Ranks
    from oven_learner.rollback.memory_snapshots import snapshot_count
    from oven_learner.rollback.snapshot_memory import plan_snapshots

    with tempfile.TemporaryDirectory() as folder:
        trainer = supervised_trainer(sizes, size, Path(folder), STEPS, "eager")
        trainer.train()
        print(f"{size}: trained", flush=True)
        wait = torch.cuda.synchronize if sizes.device == "cuda" else lambda: None
        torch.manual_seed(2)
        shape = (STEPS, sizes.rows, sizes.tokens)
        batches = torch.randint(0, SIZES[size]["vocab_size"], shape, device=sizes.device)  # (steps, B, T)
        memory_before = torch.cuda.memory_allocated() if sizes.device == "cuda" else 0
        memory = plan_snapshots(snapshot_size(trainer), Ranks())
        device = memory.device if memory is not None else None
        (_, state), take_s = _median_of(lambda: take_snapshot(trainer, device), wait)
        print(f"{size}: {take_s} s per snapshot", flush=True)
        gc.collect()
        held = torch.cuda.memory_allocated() - memory_before if sizes.device == "cuda" else None
        at_snapshot = _bits_of(trainer)
        _steps(trainer, batches)
        continued = _bits_of(trainer)
        _, restore_s = _median_of(lambda: restore_snapshot(trainer, state), wait)
        print(f"{size}: {restore_s} s per restore", flush=True)
        difference = first_difference(at_snapshot, _bits_of(trainer))
        changed = first_difference(at_snapshot, continued)
        _steps(trainer, batches)
        again = first_difference(continued, _bits_of(trainer))
        return {
            "snapshot_bytes": snapshot_size(trainer),
            "card_bytes": held,
            "take_s": take_s,
            "restore_s": restore_s,
            "take_gb_per_s": round(snapshot_size(trainer) / take_s / 1e9, 1),
            "restored_bits_equal": difference is None,
            "continued_bits_equal": changed is not None and again is None,
            "first_difference": str(difference or again or ""),
            "weight_change_bits_differ": changed is not None,
            "kept_in_memory": snapshot_count(memory.levels) if memory is not None else 0,
            "kept_on": str(device or sizes.device),
            "values": len(at_snapshot),
        }


def _median_of(act: Callable[[], Any], wait: Callable[[], object]) -> tuple[Any, float]:
    """The last result, and the median of the seconds. The first call is not counted, because it allocates memory."""
    seconds = []
    for _ in range(COPIES + 1):
        result = None
        wait()
        began = time.perf_counter()
        result = act()
        wait()
        seconds.append(time.perf_counter() - began)
    return result, round(median(seconds[1:]), 5)


def _bits_of(trainer: Any) -> dict[str, Any]:
    """Copies of the weights, moments and schedule, by path."""
    from oven_bench.configurations.bitwise_diff import copied_leaves

    return copied_leaves({
        "model": dict(trainer.accelerator.unwrap_model(trainer.model).state_dict()),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
    })  # fmt: skip


def _steps(trainer: Any, batches: Any) -> None:
    """Take the trainer's optimizer steps on these batches, without its loop."""
    for ids in batches:
        trainer.model.train()
        trainer.model(input_ids=ids, labels=ids).loss.backward()
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        trainer.optimizer.zero_grad()
