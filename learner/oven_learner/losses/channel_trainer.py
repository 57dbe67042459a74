"""TRL's GRPOTrainer with weighted channels added to its loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor
from transformers import ProcessorMixin
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_learner import trainer_internals
from oven_learner.losses.loss_channel import Channel, ChannelCheckpoints, Rollouts, check_channels, log_term


class ChannelTrainer(ChannelCheckpoints, GRPOTrainer):
    """A GRPOTrainer that adds `channels` to its loss while their weights are above 0. Raises ConfigError for duplicate
    channels, for processors that take images, and for setups that do not support a second forward pass per step: FSDP,
    DeepSpeed, and DDP with re-entrant gradient checkpointing. All other features work as in TRL, including vLLM, PEFT,
    async rewards, tools and environments, as far as the installed version has them."""

    def __init__(self, *args: Any, channels: Iterable[Channel] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.channels: Sequence[Channel] = tuple(channels)
        check_channels(self.channels, ("completions",), type(self).__name__)
        if self.channels:
            _check_support(self)
        for channel in self.channels:
            channel.bind(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._scored_batch: tuple[Any, Any, Any] = (), (), None  # prompts, completion ids, rewards per function
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.channels:
            rollouts = self._collect_rollouts(inputs)
            for channel in self.channels:
                batch.update(channel.columns(rollouts))
        self._scored_batch = (), (), None
        return batch

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored_batch = prompts, completion_ids_list, rewards
        return rewards

    def _collect_rollouts(self, rows: list[dict[str, Any]]) -> Rollouts:
        prompts, completion_ids, function_rewards = self._scored_batch  # function_rewards: (ranks · B, functions)
        weighted_rewards = function_rewards * self.reward_weights.to(function_rewards.device).unsqueeze(0)
        rewards = weighted_rewards.nansum(dim=1).masked_fill(function_rewards.isnan().all(dim=1), float("nan"))
        tools, environments = trainer_internals.tools_of_rows(self, len(rows)), getattr(self, "environments", None)
        group_size = trainer_internals.group_size(self)
        return Rollouts(rows, prompts, completion_ids, rewards, tools, environments, group_size)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        for channel in self.channels:
            if channel.weight:
                loss = loss + channel.weight * self._compute_term(channel, model, inputs)
        return loss

    def _compute_term(self, channel: Channel, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the mean of the term over the micro-batch, divided by the number of micro-batches per step."""
        term_sum = channel.tally(model, inputs)
        mode: Literal["train", "eval"] = "train" if model.training else "eval"
        log_term(self, channel, term_sum, mode)
        micro_batches = self.current_gradient_accumulation_steps if mode == "train" else 1
        return term_sum.total / term_sum.token_count.clamp(min=1) / micro_batches


def _check_support(trainer: Any) -> None:
    """Raise ConfigError for a setup that does not support channels."""
    trainer_internals.CHANNELS.require(trainer)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ConfigError(
            "channels run the policy twice per step, which the sharded parameters of FSDP and DeepSpeed do not "
            "support; train with DDP or in one process, or without channels"
        )
    if isinstance(trainer.processing_class, ProcessorMixin):
        raise ConfigError("channels score text only, and this processor also takes images; train without channels")
    reentrant = (trainer.args.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
    if trainer.args.gradient_checkpointing and reentrant and trainer.accelerator.num_processes > 1:
        raise ConfigError(
            "channels run the policy twice per step, and DDP with re-entrant gradient checkpointing supports one "
            "forward pass; set gradient_checkpointing_kwargs={'use_reentrant': False}"
        )
