"""Excludes unscored groups from the loss of TRL's GRPOTrainer, and skips steps without any scored group.

TRL gives completions without a reward an advantage of 0. So they have no policy gradient, but they still count in the
KL term and in the loss's denominator. In a step without any reward, Adam's momentum and weight decay still change the
weights. In an experiment, 15 such steps reduced greedy accuracy from 0.87 to 0.33.

This module therefore masks the completions of unscored groups, as TRL does for `mask_truncated_completions`. The other
rows get the weights that they would have in a batch without the unscored ones:

- dapo, cispo, vespo: the token count that divides the loss is recomputed.
- grpo, sapo, luspo, dr_grpo (means over rows): advantages and β are multiplied by all groups / scored groups.
- bnpo: nothing changes, because each micro-batch is divided by its own tokens. Without a scored row its loss is 0.

The load-balancing loss of a mixture of experts still includes the prompts of unscored groups.

A skipped step calls neither the optimizer nor the scheduler. HF's Trainer learns of the skip from accelerate's overflow
flag. The step still counts towards `max_steps`, so that skipped steps cannot prolong the training.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from oven_core.errors import ConfigError
from oven_learner import trainer_internals
from oven_learner.rewards.committee import Committee

SCORED_ROWS, LOSS_FACTOR = "oven_scored", "oven_factor"
"""Keys that this module adds to TRL's batch if a group is unscored: the mask of scored rows, (B,) bool, and the factor
by which the loss of the other rows is multiplied, a scalar."""
TOKEN_MEANS = ("dapo", "cispo", "vespo")
ROW_MEANS = ("grpo", "sapo", "luspo", "dr_grpo")
MICRO_BATCH_MEANS = ("bnpo",)
"""TRL's loss types, grouped by whether the loss is a mean over tokens, over rows, or over a micro-batch's tokens."""
NEUTRAL_VALUES = {
    "completion_mask": 0, "old_per_token_logps": 0, "ref_per_token_logps": 0, "sampling_per_token_logps": 0,
    "importance_sampling_ratio": 1,
}  # fmt: skip
"""Values that replace TRL's tensors in unscored rows. TRL sets the policy's log-probabilities to 0 where the mask is 0,
so all ratios are 1 there and cannot overflow."""
BATCH_PREFIXES = ("completions/", "committee/", "reward")
"""Prefixes of metrics that are computed before the loss, so that they are valid even in a skipped step."""


class UnscoredGroupSkipper:
    """Makes a trainer skip unscored groups and fully unscored steps. Call `install` before `train()`, and `begin` once
    the optimizer exists. Raises ConfigError for an unsupported trainer."""

    def __init__(self, trainer: Any, committee: Committee) -> None:
        if getattr(trainer, "reward_funcs", None) != [committee]:
            raise ConfigError(
                "the committee must be the trainer's only reward function, GRPOTrainer(reward_funcs=[committee], ...); "
                "pass other functions as members, Committee({name: function})"
            )
        if trainer.is_deepspeed_enabled:
            raise ConfigError("DeepSpeed steps inside backward(), so no step can be skipped; use FSDP or DDP")
        if trainer.loss_type not in (*TOKEN_MEANS, *ROW_MEANS, *MICRO_BATCH_MEANS):
            raise ConfigError(f"the normalisation of loss_type {trainer.loss_type!r} is unknown; use dapo or grpo")
        trainer_internals.COMMITTEE.require(trainer)
        self._trainer, self._committee = trainer, committee
        self._has_scored_row = False
        """Whether the current optimizer step has a scored row."""
        self._consecutive_skips = 0
        self._is_skipped = False
        """Whether the last optimizer step was skipped."""
        self._abstentions: Counter[str] = Counter()
        """Number of abstentions of each kind since the last step that was not skipped."""

    def install(self) -> None:
        """Wrap the trainer's methods."""
        trainer_internals.wrap(self._trainer, trainer_internals.GENERATE_BATCH, self._wrap_generation)
        trainer_internals.wrap(self._trainer, trainer_internals.COMPUTE_LOSS, self._wrap_loss)
        logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_safe_to_log)

    def begin(self) -> None:
        """Start a training run, after accelerate has wrapped the optimizer."""
        optimizer = self._trainer.optimizer
        self._has_scored_row, self._consecutive_skips, self._is_skipped = False, 0, False
        if not hasattr(optimizer.step, "oven_skips"):
            self._optimizer, self._original_step = optimizer, optimizer.step

            @wraps(optimizer.step)  # copies the attributes that torch's schedulers have set on it
            def step(closure: Any = None) -> None:
                self._step_or_skip(closure)

            step.oven_skips = True  # type: ignore[attr-defined]
            optimizer.step = step

    def end_step(self, step_metrics: dict[str, float]) -> tuple[dict[str, float], str]:
        """Return the valid metrics of a finished step, and a reason to hold the run, or "". For a skipped step, loss,
        gradient norm and entropy are omitted."""
        metrics = dict(step_metrics)
        if self._is_skipped:
            metrics = {name: value for name, value in step_metrics.items() if name.startswith(BATCH_PREFIXES)}
        metrics["committee/skipped_steps"] = float(self._is_skipped)
        if self._consecutive_skips < self._committee.hold_after:
            return metrics, ""
        reasons = ", ".join(f"{kind} {count}" for kind, count in self._abstentions.most_common(2))
        reason = (  # short, because the monitor and notifications truncate it
            f"no group had a quorum of {self._committee.quorum} in {self._consecutive_skips} steps "
            f"({reasons or 'no abstentions'}); swap or fix a judge, then resume"
        )
        self._consecutive_skips = 0
        return metrics, reason

    def _wrap_generation(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        self._original_generate = generate
        return self._generate_batch

    def _wrap_loss(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        self._original_loss = compute_loss
        return self._compute_loss

    def _generate_batch(self, inputs: Any) -> dict[str, Any]:
        is_training = self._trainer.model.training
        self._committee.group_size = trainer_internals.group_size(self._trainer)
        batch: dict[str, Any] = self._original_generate(inputs)
        outcome = self._committee.last_outcome
        if is_training:
            self._abstentions += outcome.abstentions
            if outcome.skipped_groups:
                self._exclude_unscored(batch, outcome.group_count, outcome.skipped_groups)
        return batch

    def _exclude_unscored(self, batch: dict[str, Any], group_count: int, unscored_count: int) -> None:
        """Mask the unscored rows of a batch, and reweight the others."""
        trainer, outcome = self._trainer, self._committee.last_outcome
        device = batch["completion_mask"].device
        scored_rows = torch.tensor([outcome.rewards[row] is not None for row in self._committee.rows], device=device)
        for name, neutral_value in NEUTRAL_VALUES.items():
            if name in batch:
                batch[name] = batch[name].masked_fill(~scored_rows.unsqueeze(1), neutral_value)
        tokens = batch["completion_mask"] * batch.get("tool_mask", 1)
        batch["num_items_in_batch"] = trainer.accelerator.gather(tokens.sum()).sum()
        batch[SCORED_ROWS] = scored_rows
        zero_std_shares = trainer_internals.metric_lists(trainer).get("frac_reward_zero_std")
        if unscored_count == group_count:
            if zero_std_shares:
                zero_std_shares.pop()
            return
        factor = group_count / (group_count - unscored_count)
        if zero_std_shares:
            zero_std_shares[-1] *= factor  # TRL counts unscored groups in the denominator
        if trainer.loss_type in ROW_MEANS:
            batch["advantages"] = batch["advantages"] * factor
            batch[LOSS_FACTOR] = torch.tensor(factor)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        trainer, scored_rows, factor = self._trainer, inputs.get(SCORED_ROWS), inputs.get(LOSS_FACTOR)
        if trainer.model.training:
            self._has_scored_row = self._has_scored_row or scored_rows is None or bool(scored_rows.any())
        beta = trainer.beta
        if factor is not None:
            trainer.beta = beta * float(factor)
        try:
            return self._original_loss(model, inputs)  # type: ignore[no-any-return]
        finally:
            trainer.beta = beta

    def _step_or_skip(self, closure: Any = None) -> None:
        """Step the optimizer if any rank has a scored row, and otherwise skip the step."""
        has_scored_row, self._has_scored_row = self._on_any_rank(self._has_scored_row), False
        self._is_skipped = not has_scored_row
        optimizer = self._optimizer
        if has_scored_row:
            self._consecutive_skips, self._abstentions = 0, Counter()
            if optimizer.scaler is None:  # otherwise the scaler sets the flag
                trainer_internals.set_overflow(optimizer, False)
            self._original_step(closure)
            return
        self._consecutive_skips += 1
        trainer_internals.set_overflow(optimizer, True)
        if optimizer.scaler is not None and self._trainer.args.max_grad_norm > 0:
            optimizer.scaler.update()  # clipping has unscaled the gradients, and the scaler allows that once per update

    def _on_any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank, so that either all ranks step or none does."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            return flag
        return bool(accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), reduction="sum") > 0)


def _is_safe_to_log(record: logging.LogRecord) -> bool:
    """Return whether to log a record. TRL's warning about a row without a reward is not, because it quotes the row."""
    return "All reward functions returned None" not in str(record.msg)
