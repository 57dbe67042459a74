"""`kl/<teacher>`: how far the policy is from the teachers that do not teach now, on the completions of one step in
`kl_every` (oven_learner.teachers.Teachers).

The estimate is that of GRPO's own `kl`, for each teacher: the mean over the completions' tokens of exp(r) − r − 1 with
r = log π_teacher − log π_θ. It is taken before the step's loss, without a gradient and with the random states put back,
so that it changes no bit of the training.
"""

from __future__ import annotations

from typing import Any

import torch

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.teachers import Teachers
from oven_learner.teachers.registry import teaching

PREFIX = "kl/"


class IdleTeachers(StepHook):
    """Asks them in a step that is sampled, before its loss. Completions with images are not sampled."""

    def __init__(self, trainer: Any, teachers: Teachers | None) -> None:
        self._trainer = trainer
        grpo = any(cls.__name__ == "GRPOTrainer" for cls in type(trainer).__mro__)
        self._teachers = teachers if grpo and teachers is not None and teachers.kl_every else None
        self._sums: dict[str, torch.Tensor] = {}
        """Teacher → the sum over the step's tokens so far and their number: (2,), on the device."""
        self._told: frozenset[str] = frozenset()
        if self._teachers is None:
            return
        compute = trainer._compute_loss

        def watched(model: Any, inputs: dict[str, Any]) -> Any:
            if model.training and self._due and "pixel_values" not in inputs:
                self._sample(model, inputs)
            return compute(model, inputs)

        trainer._compute_loss = watched

    def announced(self) -> tuple[MetricSpec, ...]:
        teachers = self._teachers
        if teachers is None or len(teachers) < 2:
            return ()
        loaded = [name for name in teachers.names if name not in teachers.refused]
        self._told = frozenset(loaded)
        unit = f"nats per token, of one step in {teachers.kl_every}, while it is not active"
        return tuple(MetricSpec(name=PREFIX + name, unit=unit) for name in loaded)

    def begin(self, ranks: Ranks) -> None:
        self._sums.clear()

    def end_step(self, step: StepEnd) -> None:
        if not self._sums:
            return
        names, sums = list(self._sums), torch.stack(list(self._sums.values()))  # (teachers, 2)
        self._sums.clear()
        for name, (total, tokens) in zip(
            names, self._trainer.accelerator.reduce(sums, reduction="sum").tolist(), strict=True
        ):
            if tokens:
                step.metrics[PREFIX + name] = total / tokens

    @property
    def _due(self) -> bool:
        """In the step under way; `global_step` counts those that ended."""
        assert self._teachers is not None
        return (int(self._trainer.state.global_step) + 1) % self._teachers.kl_every == 0

    def _sample(self, model: Any, inputs: dict[str, Any]) -> None:
        assert self._teachers is not None
        idle = {name: one for name, one in self._teachers.idle.items() if name in self._told}
        if not idle:
            return
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)  # (B, P + C)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]  # (B, C)
        mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
        kept = mask.size(1)

        def scores(one: Any) -> torch.Tensor:
            found, _, _ = self._trainer._get_per_token_logps_and_entropies(one, ids, seen, kept)
            return found.float()  # type: ignore[no-any-return]

        with torch.no_grad(), torch.random.fork_rng(devices=[ids.device] if ids.is_cuda else []):
            policy = scores(model)  # (B, C)
            for name, teacher in idle.items():
                with teaching(self._trainer, teacher) as one:
                    r = scores(one) - policy
                kl = (torch.exp(r) - r - 1) * mask
                found = torch.stack([kl.sum(), mask.sum().to(kl.dtype)])
                self._sums[name] = self._sums[name] + found if name in self._sums else found
