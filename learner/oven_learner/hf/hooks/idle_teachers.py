"""Measures the metrics `kl/<teacher>`, the policy's distance from the inactive teachers.

The metrics are measured on the completions of every `kl_every`-th step (oven_learner.teachers.Teachers). The estimator
is the same as for GRPO's own `kl`: the mean of exp(r) − r − 1 over the completions' tokens, with
r = log π_teacher − log π_θ. The measurement takes place before the step's loss is computed. It needs no gradients and
restores the random states, so training is bit-identical with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.teachers import Teachers
from oven_learner.teachers.reference_model import open_teacher

PREFIX = "kl/"


class IdleTeachers(StepHook):
    """Evaluates the inactive teachers before the loss of a sampled step. Completions with images are not sampled."""

    def __init__(self, trainer: Any, teachers: Teachers | None) -> None:
        self._trainer = trainer
        is_measurable = trainer_internals.IDLE_TEACHER_KL.works_on(trainer)
        self._teachers = teachers if is_measurable and teachers is not None and teachers.kl_every else None
        self._sums: dict[str, torch.Tensor] = {}
        """Teacher → a tensor on the device with the sum of the KL over the step's tokens so far, and their number."""
        self._announced: frozenset[str] = frozenset()
        if self._teachers is not None:
            trainer_internals.wrap(trainer, trainer_internals.COMPUTE_LOSS, self._evaluate_before)

    def _evaluate_before(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate_and_compute(model: Any, inputs: dict[str, Any]) -> Any:
            if model.training and self._is_sampled_step and "pixel_values" not in inputs:
                self._evaluate_teachers(model, inputs)
            return compute_loss(model, inputs)

        return evaluate_and_compute

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        teachers = self._teachers
        if teachers is None or len(teachers) < 2:
            return ()
        loaded_names = [name for name in teachers.names if name not in teachers.refused]
        self._announced = frozenset(loaded_names)
        unit = f"nats per token, of one step in {teachers.kl_every}, while it is not active"
        return tuple(MetricSpec(name=PREFIX + name, unit=unit) for name in loaded_names)

    def begin(self, ranks: Ranks) -> None:
        self._sums.clear()

    def end_step(self, step: StepEnd) -> None:
        if not self._sums:
            return
        names, sums = list(self._sums), torch.stack(list(self._sums.values()))  # (teachers, 2)
        self._sums.clear()
        totals = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        for name, (total, tokens) in zip(names, totals, strict=True):
            if tokens:
                step.metrics[PREFIX + name] = total / tokens

    @property
    def _is_sampled_step(self) -> bool:
        """Whether the current step is sampled. `global_step` is the number of completed steps."""
        assert self._teachers is not None
        return (int(self._trainer.state.global_step) + 1) % self._teachers.kl_every == 0

    def _evaluate_teachers(self, model: Any, inputs: dict[str, Any]) -> None:
        assert self._teachers is not None
        idle = {name: teacher for name, teacher in self._teachers.idle_models.items() if name in self._announced}
        if not idle:
            return
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)  # (B, P + C)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]  # (B, C)
        mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
        length = mask.size(1)

        def log_probs(scored_model: Any) -> torch.Tensor:
            return trainer_internals.log_probabilities(self._trainer, scored_model, ids, attention, length).float()

        with torch.no_grad(), torch.random.fork_rng(devices=[ids.device] if ids.is_cuda else []):
            policy = log_probs(model)  # (B, C)
            for name, teacher in idle.items():
                with open_teacher(self._trainer, teacher) as teacher_model:
                    r = log_probs(teacher_model) - policy
                kl = (torch.exp(r) - r - 1) * mask
                sums = torch.stack([kl.sum(), mask.sum().to(kl.dtype)])
                self._sums[name] = self._sums[name] + sums if name in self._sums else sums
