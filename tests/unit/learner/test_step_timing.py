"""Where a step's time goes, by a clock that the test turns; and what is read of the machine."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl

from oven_learner.hf.hooks.step_hooks import StepEnd
from oven_learner.hf.hooks.step_metrics import StepTiming
from oven_learner.link.machine_readings import MEMORY, READING_INTERVAL_S, MachineReadings
from oven_learner.ranks import Ranks


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Trainer:
    """As TRL's: generation and rewards come within `training_step`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._metrics: dict[str, Any] = {"train": {"num_tokens": []}}
        self.seen = 0.0

    def _generate(self) -> None:
        self.clock.now += 2.0

    def _calculate_rewards(self) -> None:
        self.clock.now += 0.5

    def training_step(self, model: Any, inputs: Any) -> str:
        self._generate()
        self._calculate_rewards()
        self.clock.now += 1.0
        self.seen += 350
        self._metrics["train"]["num_tokens"] = [self.seen]
        return "loss"

    def evaluate(self) -> None:
        self.clock.now += 4.0
        raise ArithmeticError


def step(timing: StepTiming, trainer: Any, clock: Clock, inputs: Any = None) -> dict[str, float]:
    assert trainer.training_step(None, inputs or {}) == "loss"
    timing.before_update()
    clock.now += 0.25
    timing.after_update()
    clock.now += 0.25
    ended = StepEnd(1, False, frozenset(), {})
    timing.end_step(ended)
    clock.now += 0.125
    timing.after_poll(TrainerControl(), None)  # type: ignore[arg-type]
    return ended.metrics


def test_the_parts_of_a_step_and_its_tokens_are_measured() -> None:
    clock = Clock()
    trainer: Any = Trainer(clock)
    timing = StepTiming(trainer, clock)
    timing.begin(Ranks())
    assert step(timing, trainer, clock) == {}, "what came before the first step is no step"
    timings = step(timing, trainer, clock)
    assert timings == {
        "time/step": 4.0, "time/generate": 2.0, "time/reward": 0.5, "time/train": 1.0, "time/optimizer": 0.25,
        "time/controller": 0.125, "tokens_per_s": 350 / 4.0,
    }  # fmt: skip
    with pytest.raises(ArithmeticError):
        trainer.evaluate()
    again = step(timing, trainer, clock)
    assert again["time/evaluate"] == 4.0 and again["time/step"] == 8.0, "a call that raises counts, too"
    trainer.seen = 0.0  # a rollback
    assert "tokens_per_s" not in step(timing, trainer, clock)


def test_gpus_are_read_until_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("pynvml")
    works = True

    def use(handle: int) -> SimpleNamespace:
        if not works:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(gpu=97)

    vars(fake).update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=(handle + 1) * 2**30),
        nvmlDeviceGetUtilizationRates=use,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    clock = Clock()
    readings = MachineReadings(os.getpid(), clock)
    metrics = readings.take_if_due()
    assert (metrics["machine/gpu2_memory_gib"], metrics["machine/gpu2_use"]) == (3.0, 0.97)
    assert sum(name.startswith("machine/gpu") for name in metrics) == 2
    works = False
    for _ in range(2):
        clock.now += READING_INTERVAL_S
        assert set(readings.take_if_due()) == {MEMORY}
