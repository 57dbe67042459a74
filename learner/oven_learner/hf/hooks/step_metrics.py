"""The metrics of one step, taken where they arise, whatever `logging_steps` says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from transformers import Trainer, TrainerControl

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.teachers.registry import has_reference

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
        step.metrics[STEP] = whole
        step.metrics |= {f"time/{part}": seconds for part, seconds in spent.items()}
        if self._controller is not None:
            step.metrics[CONTROLLER] = self._controller
        if tokens > 0:
            step.metrics[TOKENS] = tokens / whole

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


ANY_TRAINER = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="grad_norm", unit="before clipping"),
    MetricSpec(name="learning_rate", unit="of this step"),
)
GRPO = (
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="reward_std"),
    MetricSpec(name="frac_reward_zero_std", unit="share of groups without a gradient"),
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="completions/mean_length", unit="tokens"),
    MetricSpec(name="completions/clipped_ratio"),
)

SFT = (
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="mean_token_accuracy", better="up"),
)
DPO = (
    MetricSpec(name="rewards/accuracies", better="up", unit="share of pairs in the right order"),
    MetricSpec(name="rewards/margins", better="up", unit="β × nats, chosen over rejected"),
    MetricSpec(name="rewards/chosen", unit="β × nats against the reference"),
    MetricSpec(name="rewards/rejected", unit="β × nats against the reference"),
    MetricSpec(name="logps/chosen", unit="nats, sum over tokens"),
    MetricSpec(name="logps/rejected", unit="nats, sum over tokens"),
    *SFT,
)
DISTILLATION = (
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="completions/mean_length", unit="tokens"),
    MetricSpec(name="completions/clipped_ratio"),
)
EVAL = "eval/"
OF = {"SFTTrainer": SFT, "DPOTrainer": DPO, "DistillationTrainer": DISTILLATION}
"""Trainer → what TRL measures in every step, beside what any trainer does."""


class StepMetrics(StepHook):
    """Wraps the trainer's own calls and reads what they return; the trainer behaves as before."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._loss: torch.Tensor | None = None
        self._grad_norm: Any = None
        self._read: dict[str, int] = {}
        self._ranks = Ranks()
        self._wrap(trainer, "training_step", self._on_loss)
        self._wrap(trainer.accelerator, "clip_grad_norm_", self._on_grad_norm)

    def begin(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def announced(self) -> tuple[MetricSpec, ...]:
        trainer, found = self._trainer, list(ANY_TRAINER)
        if hasattr(trainer, "reward_funcs"):
            found += GRPO
            found += [MetricSpec(name=f"rewards/{name}/mean") for name in getattr(trainer, "reward_func_names", ())]
            if hasattr(trainer, "ref_model") and has_reference(trainer):
                found.append(MetricSpec(name="kl", unit="nats per token, to the reference model"))
        else:
            found += next((OF[cls.__name__] for cls in type(trainer).__mro__ if cls.__name__ in OF), ())
        return tuple(found)

    def announced_held_out(self) -> tuple[MetricSpec, ...]:
        """What the trainer's own evaluation measures, of its first evaluation set first. Under a reward it is the
        reward: the loss there is β × KL and next to nothing else, and grows while the policy learns."""
        trainer = self._trainer
        if trainer.args.eval_strategy == "no":
            return ()
        rewarded = hasattr(trainer, "reward_funcs")
        last, better = ("reward", "up") if rewarded else ("loss", "down")
        return tuple(
            MetricSpec.model_validate({"name": EVAL + of + last, "better": better, "held_out": True})
            for of in self._sets()
        )

    def evaluated(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """What one evaluation measured, under the names that are announced: `eval/loss`; of one set of several
        `eval/NAME_loss`, also where TRL leaves the set out (it logs each one's reward as `eval_reward`)."""
        of = next((of for of in self._sets() if f"eval_{of}runtime" in metrics), "")
        return {
            EVAL + of + name.removeprefix("eval_").removeprefix(of): float(value)
            for name, value in metrics.items()
            if name.startswith("eval_") and isinstance(value, int | float)
        }

    def _sets(self) -> list[str]:
        """What the names of each evaluation set's metrics begin with."""
        sets = getattr(self._trainer, "eval_dataset", None)
        return [f"{name}_" for name in sets] if isinstance(sets, dict) else [""]

    def logged(self) -> None:
        """TRL empties its lists after each training log."""
        if self._trainer.model.training:
            self._read.clear()

    def before_update(self) -> dict[str, torch.Tensor]:
        """Loss and gradient norm. The loss is the mean over the ranks, as in the trainer's own log."""
        loss = self._ranks.mean_on_device(self._loss) if self._loss is not None else None
        found = {"loss": loss, "grad_norm": self._grad_norm}
        self._loss = self._grad_norm = None
        return {name: _scalar(value) for name, value in found.items() if value is not None}

    def end_step(self, step: StepEnd) -> None:
        """Adds what TRL has measured in this step and read itself."""
        metrics = step.metrics
        # TRL keeps a list per metric until the next log: what this step added is this step's.
        for name, values in getattr(self._trainer, "_metrics", {}).get("train", {}).items():
            read = self._read.get(name, 0)
            fresh = values[read:] if read <= len(values) else values
            self._read[name] = len(values)
            if name.startswith("reward") and hasattr(self._trainer, "reward_funcs"):
                # TRL's NaN is a reward function that had nothing to say: absent, and no broken run.
                fresh = [value for value in fresh if not math.isnan(value)]
            if fresh:
                metrics[name] = sum(fresh) / len(fresh)
        metrics.pop("num_tokens", None)

    def _on_loss(self, loss: torch.Tensor) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _on_grad_norm(self, norm: Any) -> None:
        self._grad_norm = norm

    @staticmethod
    def _wrap(owner: Any, name: str, seen: Callable[[Any], None]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            seen(result)
            return result

        setattr(owner, name, wrapped)


def _scalar(value: Any) -> torch.Tensor:
    """A sharded norm (FSDP2's DTensor) is put together, which every rank does; DeepSpeed gives a float."""
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
