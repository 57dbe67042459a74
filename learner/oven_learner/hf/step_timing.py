"""Where a step's time goes, as the training thread's clock has it, and tokens per second.

Two readings of the clock around a call that takes milliseconds: nothing is asked of the device, so a kernel that is
still queued counts for whatever waits for it next. A run in lockstep is to say the same every time, and measures none
of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from transformers import Trainer, TrainerControl

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.client import OvenClient
from oven_learner.hf.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks

STEP: Final = "time/step"
CONTROLLER: Final = "time/controller"
TOKENS: Final = "tokens_per_s"
PARTS: Final = {"generate": "_generate", "reward": "_calculate_rewards", "evaluate": "evaluate"}
"""Part of a step → the trainer's method that is timed for it, where it has one."""
TRAIN: Final = "train"
"""Forward and backward: what `training_step` takes without generation and rewards, which TRL does in it."""
OPTIMIZER: Final = "optimizer"


class StepTiming(StepHook):
    """The last of the hooks: what the others do at a step's end is a part of the step."""

    def __init__(self, trainer: Trainer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._trainer: Any = trainer
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._began: float | None = None
        self._ended = self._updating = 0.0
        self._controller: float | None = None
        self._tokens = 0.0
        self._seen_tokens: float | None = None
        for part, name in PARTS.items():
            if hasattr(trainer, name):
                self.timed(trainer, name, part)
        self.timed(trainer, "training_step", TRAIN, self._count)

    def timed(self, owner: Any, name: str, part: str, seen: Callable[..., None] | None = None) -> None:
        """Count the time of a method for a part of the step. `seen` gets its arguments."""
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if seen is not None:
                seen(*args, **kwargs)
            began = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._spent[part] = self._spent.get(part, 0.0) + self._clock() - began

        setattr(owner, name, wrapped)

    def begin(self, ranks: Ranks) -> None:
        self._spent, self._began, self._controller = {}, None, None
        self._tokens, self._seen_tokens = 0.0, None

    def announced(self) -> tuple[MetricSpec, ...]:
        return (MetricSpec(name=STEP, unit="seconds"), MetricSpec(name=TOKENS, unit="tokens per second"))

    def before_update(self) -> Mapping[str, torch.Tensor]:
        self._updating = self._clock()
        return {}

    def after_update(self) -> Mapping[str, torch.Tensor]:
        self._spent[OPTIMIZER] = self._spent.get(OPTIMIZER, 0.0) + self._clock() - self._updating
        return {}

    def end_step(self, step: StepEnd) -> None:
        now, spent, began = self._clock(), self._spent, self._began
        self._ended, self._spent = now, {}
        tokens, self._tokens = self._new_tokens(), 0.0
        if began is None:  # the first step: what came before it is no step
            return
        whole = max(now - began, 1e-9)
        if TRAIN in spent:
            spent[TRAIN] = max(0.0, spent[TRAIN] - spent.get("generate", 0.0) - spent.get("reward", 0.0))
        step.known[STEP] = whole
        step.known |= {f"time/{part}": seconds for part, seconds in spent.items()}
        if self._controller is not None:
            step.known[CONTROLLER] = self._controller
        if tokens > 0:
            step.known[TOKENS] = tokens / whole

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        self._began = self._clock()
        self._controller = self._began - self._ended

    def _count(self, model: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> None:
        """Tokens that the trainer reads, where it does not count them itself."""
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
        if isinstance(ids, torch.Tensor):
            self._tokens += ids.numel()

    def _new_tokens(self) -> float:
        """Of the step, over all ranks where TRL counts them, else of this one. A rollback sets TRL's count back."""
        counted = getattr(self._trainer, "_metrics", {}).get("train", {}).get("num_tokens")
        if not counted:
            return self._tokens
        before, self._seen_tokens = self._seen_tokens, float(counted[-1])
        return max(0.0, self._seen_tokens - before) if before is not None else 0.0
