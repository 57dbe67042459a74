"""The metrics of one step, taken where they arise, whatever `logging_steps` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import Trainer

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.teachers.registry import has_reference

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
        metrics = step.known
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
