"""Publishes the metrics and timings of every step, independently of `logging_steps`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from transformers import Trainer, TrainerControl

from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.teachers.reference_model import has_reference

STEP_TIME: Final = "time/step"
CONTROLLER_TIME: Final = "time/controller"
TOKEN_RATE: Final = "tokens_per_s"
TIMED_METHODS: Final = {
    "generate": trainer_internals.GENERATE,
    "reward": trainer_internals.CALCULATE_REWARDS,
    "evaluate": "evaluate",
}
"""Part of a step → the trainer's method that is timed for it, if it has that method."""
TRAIN: Final = "train"
"""Forward and backward pass: the time of `training_step`, minus the generation and rewards that TRL runs there."""
OPTIMIZER: Final = "optimizer"


class StepTiming(StepHook):
    """Measures the duration of each part of a step on the training thread, and tokens per second.

    It only reads the clock before and after calls that take milliseconds. The device is not synchronised, so the time
    of a queued kernel counts for the next call that waits for it. Lockstep runs have no timing, because they must be
    reproducible. This hook runs last, so that a step includes the work of the other hooks.
    """

    def __init__(self, trainer: Trainer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._trainer: Any = trainer
        self._clock = clock
        self._durations: dict[str, float] = {}
        self._began_at: float | None = None
        self._ended_at = self._update_began_at = 0.0
        self._controller_s: float | None = None
        self._input_tokens = 0.0
        self._last_token_count: float | None = None
        for part, name in TIMED_METHODS.items():
            if hasattr(trainer, name):
                self.time_method(trainer, name, part)
        self.time_method(trainer, "training_step", TRAIN, self._count_input_tokens)

    def time_method(self, owner: Any, name: str, part: str, before: Callable[..., None] | None = None) -> None:
        """Wrap a method to add its duration to a part of the step. First, call `before` with the same arguments."""
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            began = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._durations[part] = self._durations.get(part, 0.0) + self._clock() - began

        setattr(owner, name, wrapped)

    def begin(self, ranks: Ranks) -> None:
        self._durations, self._began_at, self._controller_s = {}, None, None
        self._input_tokens, self._last_token_count = 0.0, None

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return (MetricSpec(name=STEP_TIME, unit="seconds"), MetricSpec(name=TOKEN_RATE, unit="tokens per second"))

    def before_update(self) -> Mapping[str, torch.Tensor]:
        self._update_began_at = self._clock()
        return {}

    def after_update(self) -> Mapping[str, torch.Tensor]:
        self._durations[OPTIMIZER] = self._durations.get(OPTIMIZER, 0.0) + self._clock() - self._update_began_at
        return {}

    def end_step(self, step: StepEnd) -> None:
        now, durations, began = self._clock(), self._durations, self._began_at
        self._ended_at, self._durations = now, {}
        tokens, self._input_tokens = self._tokens_of_step(), 0.0
        if began is None:  # the start of the first step was not recorded
            return
        duration = max(now - began, 1e-9)
        if TRAIN in durations:
            nested = durations.get("generate", 0.0) + durations.get("reward", 0.0)
            durations[TRAIN] = max(0.0, durations[TRAIN] - nested)
        step.metrics[STEP_TIME] = duration
        step.metrics |= {f"time/{part}": seconds for part, seconds in durations.items()}
        if self._controller_s is not None:
            step.metrics[CONTROLLER_TIME] = self._controller_s
        if tokens > 0:
            step.metrics[TOKEN_RATE] = tokens / duration

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        self._began_at = self._clock()
        self._controller_s = self._began_at - self._ended_at

    def _count_input_tokens(self, model: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count the input tokens, for a trainer that does not count them itself."""
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
        if isinstance(ids, torch.Tensor):
            self._input_tokens += ids.numel()

    def _tokens_of_step(self) -> float:
        """Return this step's number of tokens, on all ranks if TRL counts them, otherwise on this rank. A rollback
        resets TRL's count, so the difference can be negative and then counts as 0."""
        token_counts = trainer_internals.metric_lists(self._trainer).get("num_tokens")
        if not token_counts:
            return self._input_tokens
        count_before, self._last_token_count = self._last_token_count, float(token_counts[-1])
        return max(0.0, self._last_token_count - count_before) if count_before is not None else 0.0


COMMON_METRICS = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="grad_norm", unit="norm before clipping"),
    MetricSpec(name="learning_rate", unit="rate used in this step"),
)
DISTILLATION_METRICS = (
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="completions/mean_length", unit="tokens"),
    MetricSpec(name="completions/clipped_ratio"),
)
GRPO_METRICS = (
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="reward_std"),
    MetricSpec(name="frac_reward_zero_std", unit="share of groups without a gradient"),
    *DISTILLATION_METRICS,
)
SFT_METRICS = (MetricSpec(name="entropy", unit="nats per token"), MetricSpec(name="mean_token_accuracy", better="up"))
DPO_METRICS = (
    MetricSpec(name="rewards/accuracies", better="up", unit="share of pairs in the correct order"),
    MetricSpec(name="rewards/margins", better="up", unit="β × nats, chosen minus rejected"),
    MetricSpec(name="rewards/chosen", unit="β × nats against the reference"),
    MetricSpec(name="rewards/rejected", unit="β × nats against the reference"),
    MetricSpec(name="logps/chosen", unit="nats, summed over tokens"),
    MetricSpec(name="logps/rejected", unit="nats, summed over tokens"),
    *SFT_METRICS,
)
METRICS_BY_TRAINER = {"SFTTrainer": SFT_METRICS, "DPOTrainer": DPO_METRICS, "DistillationTrainer": DISTILLATION_METRICS}
"""Trainer class → the metrics that TRL logs every step, in addition to COMMON_METRICS."""


class StepMetrics(StepHook):
    """Publishes loss, gradient norm and TRL's own metrics by wrapping the trainer's methods. Training is unchanged."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._loss: torch.Tensor | None = None
        self._grad_norm: Any = None
        self._read_counts: dict[str, int] = {}  # metric → number of values already read from TRL's list
        self._ranks = Ranks()
        self._wrap(trainer, "training_step", self._on_loss)
        self._wrap(trainer.accelerator, "clip_grad_norm_", self._on_grad_norm)

    def begin(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        trainer, metrics = self._trainer, list(COMMON_METRICS)
        if hasattr(trainer, "reward_funcs"):
            metrics += GRPO_METRICS
            metrics += [MetricSpec(name=f"rewards/{name}/mean") for name in getattr(trainer, "reward_func_names", ())]
            if hasattr(trainer, "ref_model") and has_reference(trainer):
                metrics.append(MetricSpec(name="kl", unit="nats per token, to the reference model"))
        else:
            names = (cls.__name__ for cls in type(trainer).__mro__)
            metrics += next((METRICS_BY_TRAINER[name] for name in names if name in METRICS_BY_TRAINER), ())
        return tuple(metrics)

    def on_log(self) -> None:
        """Reset the read positions, because TRL empties its lists after each training log."""
        if self._trainer.model.training:
            self._read_counts.clear()

    def before_update(self) -> dict[str, torch.Tensor]:
        """Return loss and gradient norm. The loss is the mean over the ranks, as in the trainer's own log."""
        loss = self._ranks.mean_on_device(self._loss) if self._loss is not None else None
        values = {"loss": loss, "grad_norm": self._grad_norm}
        self._loss = self._grad_norm = None
        return {name: _to_scalar(value) for name, value in values.items() if value is not None}

    def end_step(self, step: StepEnd) -> None:
        metrics = step.metrics
        # TRL keeps a list per metric until the next log. Values added since the last call belong to this step.
        for name, values in trainer_internals.metric_lists(self._trainer).items():
            read_count = self._read_counts.get(name, 0)
            new_values = values[read_count:] if read_count <= len(values) else values
            self._read_counts[name] = len(values)
            if name.startswith("reward") and hasattr(self._trainer, "reward_funcs"):
                # In TRL, NaN means that a reward function gave no score. It is not an error.
                new_values = [value for value in new_values if not math.isnan(value)]
            if new_values:
                metrics[name] = sum(new_values) / len(new_values)
        metrics.pop("num_tokens", None)

    def _on_loss(self, loss: torch.Tensor) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _on_grad_norm(self, norm: Any) -> None:
        self._grad_norm = norm

    @staticmethod
    def _wrap(owner: Any, name: str, on_result: Callable[[Any], None]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            on_result(result)
            return result

        setattr(owner, name, wrapped)


def _to_scalar(value: Any) -> torch.Tensor:
    """Convert FSDP2's DTensor, which all ranks must combine, or DeepSpeed's float, to a tensor on one device."""
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
