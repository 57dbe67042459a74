"""TRL's GRPOTrainer with weighted channels beside its loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ProcessorMixin
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_controller.errors import ConfigError
from oven_learner.losses.channel import Channel, check_channels


class ChannelTrainer(GRPOTrainer):
    """A GRPOTrainer, with all that TRL documents of it: `channels` are added to its loss while their weight is above 0.

    Raises ConfigError for two channels of a name, and for what channels cannot be combined with: a second forward pass
    of the policy in a step is not supported under FSDP and DeepSpeed here, nor under DDP with re-entrant gradient
    checkpointing; and a processor's images are not carried to it. Everything else (vLLM in both modes, PEFT, async
    rewards, tools) is as in TRL.

    Written for TRL 1.16 (`_compute_loss`, `_generate_and_score_completions`, `_metrics`).
    """

    def __init__(self, *args: Any, channels: Iterable[Channel] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.channels: Sequence[Channel] = tuple(channels)
        check_channels(self.channels, ("completions",), type(self).__name__)
        if self.channels:
            _refuse(self)
        for channel in self.channels:
            channel.bind(self)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ConfigError first, if a channel that is on cannot be computed."""
        for channel in self.channels:
            channel.set_weight(channel.weight)
        return super().train(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        for channel in self.channels:
            batch.update(channel.columns(inputs))
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        for channel in self.channels:
            if channel.weight:
                loss = loss + channel.weight * self._term(channel, model, inputs)
        return loss

    def _term(self, channel: Channel, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The mean over this micro-batch's tokens, over the micro-batches of a step. Published is the mean over the
        tokens of all ranks, where there are any."""
        total, count = channel.tally(model, inputs)
        mode = "train" if model.training else "eval"
        here = torch.stack([total.detach(), count.to(total)])
        summed, tokens = self.accelerator.reduce(here, reduction="sum").tolist()
        if tokens:
            self._metrics[mode][f"channel/{channel.name}"].append(summed / tokens)
            self._metrics[mode][f"channel/{channel.name}/weight"].append(channel.weight)
        parts = self.current_gradient_accumulation_steps if mode == "train" else 1
        return total / count.clamp(min=1) / parts


def _refuse(trainer: Any) -> None:
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ConfigError(
            "channels run the policy a second time within a step, which FSDP's and DeepSpeed's sharded parameters are "
            "not prepared for; train with DDP or in one process, or without channels"
        )
    if isinstance(trainer.processing_class, ProcessorMixin):
        raise ConfigError("channels score text, and this processor takes images too; train without channels")
    reentrant = (trainer.args.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
    if trainer.args.gradient_checkpointing and reentrant and trainer.accelerator.num_processes > 1:
        raise ConfigError(
            "channels run the policy a second time within a step, and DDP with re-entrant gradient checkpointing takes "
            "one; set gradient_checkpointing_kwargs={'use_reentrant': False}"
        )
