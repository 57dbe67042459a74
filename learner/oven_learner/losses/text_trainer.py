"""Transformers' Trainer with channels (weighted extra loss terms), for language models that train on plain text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from oven_core.errors import ConfigError
from oven_learner import trainer_internals
from oven_learner.losses.loss_channel import Channel, ChannelCheckpoints, check_channels, log_term

LOGITS, HIDDEN = "oven_logits", "oven_hidden"
"""Keys in a channel's batch for the model's logits (B, T, V) and last hidden states (B, T, H), both differentiable."""
IGNORED = -100
"""Label of tokens that do not count, the default `ignore_index` of cross_entropy and transformers."""


class TextChannels(ChannelCheckpoints):
    """A mixin that adds channels to a Trainer class: `class MyTrainer(TextChannels, Trainer)`. `channels` are added to
    the training loss while their weights are above 0. Evaluation uses the trainer's own loss alone, so that its
    metrics stay comparable. Raises ConfigError for duplicate channels, for a channel that needs a GRPOTrainer's
    completions, and under FSDP and DeepSpeed, whose sharded parameters are not supported."""

    _metrics: Any
    """Values since the last log, by mode and metric. The attribute is TRL's, and attached trainers publish from it."""

    def __init__(self, *args: Any, channels: Iterable[Channel] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        if not hasattr(self, "_metrics"):
            self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.channels: Sequence[Channel] = tuple(channels)
        check_channels(self.channels, ("logits", "hidden"), type(self).__name__)
        if self.channels and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            raise ConfigError(
                "channels do not support the sharded parameters of FSDP and DeepSpeed; train with DDP or in one "
                "process, or without channels"
            )
        for channel in self.channels:
            channel.bind(self)
        if self._channel_parameters():
            trainer_internals.CHANNEL_STATE.require(self)
            trainer.add_callback(ClearGradients(self._channel_parameters()))
            trainer.accelerator.clip_grad_norm_ = self._clip_jointly(trainer.accelerator.clip_grad_norm_)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the trainer's own loss plus the active channels, or the trainer's loss alone in evaluation."""
        base_loss: Any = super().compute_loss  # type: ignore[misc]
        active = [channel for channel in self.channels if channel.weight]
        if not active or not model.training:
            return base_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)
        needs_hidden = any(channel.input_kind == "hidden" for channel in active)
        extra_outputs = {"output_hidden_states": True} if needs_hidden else {}
        outputs: Any = None
        if self._has_fused_loss:
            loss = base_loss(model, {**inputs}, num_items_in_batch=num_items_in_batch)
        else:
            loss, outputs = base_loss(model, {**inputs, **extra_outputs}, True, num_items_in_batch=num_items_in_batch)
        if not _is_differentiable(outputs, loss, needs_hidden=needs_hidden):
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"}, **extra_outputs)
        batch = {**inputs, LOGITS: outputs.logits}
        if extra_outputs:
            batch[HIDDEN] = outputs.hidden_states[-1]
        is_share_of_step = self._is_share_of_step(num_items_in_batch)
        for channel in active:
            loss = loss + channel.weight * self._compute_term(channel, model, batch, is_share_of_step)
        return (loss, outputs) if return_outputs else loss

    @property
    def _has_fused_loss(self) -> bool:
        """Whether the loss comes without differentiable logits, as in TRL's SFTTrainer. Channels then run the model a
        second time. They also do so in any other trainer whose outputs have no logits (Liger)."""
        return any(cls.__name__ == "SFTTrainer" for cls in type(self).__mro__)

    def _compute_term(self, channel: Channel, model: Any, inputs: dict[str, Any], is_share_of_step: bool) -> Tensor:
        """Return the term's mean over the micro-batch, divided like the loss if that is a share of the step's loss."""
        trainer: Any = self
        with trainer.accelerator.autocast():
            term_sum = channel.tally(model, inputs)
        log_term(self, channel, term_sum, "train")
        micro_batches = trainer.current_gradient_accumulation_steps if is_share_of_step else 1
        return term_sum.total / term_sum.token_count.clamp(min=1) / micro_batches

    def _is_share_of_step(self, num_items: Any) -> bool:
        """Whether the loss of a micro-batch is already its share of the step, so `training_step` does not divide it."""
        trainer: Any = self
        is_scaled = getattr(trainer, "loss_is_scaled_for_ga", None)  # since transformers 5.3
        if is_scaled is not None:
            return bool(is_scaled)
        if trainer.compute_loss_func is not None:
            return True
        return bool(trainer.model_accepts_loss_kwargs) and num_items is not None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trainer's optimizer with the parameters of the channels. Matrices are added to the first group.
        Vectors are added to the last group, which has no weight decay. Parameters without a gradient do not move."""
        optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        groups = getattr(optimizer, "optimizer", optimizer).param_groups
        existing_ids = {id(parameter) for group in groups for parameter in group["params"]}
        for parameter in self._channel_parameters():
            if id(parameter) not in existing_ids:
                groups[0 if parameter.ndim > 1 else -1]["params"].append(parameter)
        return optimizer

    def _channel_parameters(self) -> list[torch.nn.Parameter]:
        modules = [channel.module for channel in self.channels]
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def _clip_jointly(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that clips all gradients of the step by their joint norm, including those of the channels'
        parameters. transformers passes the model's parameters only."""

        def clip_all(parameters: Iterable[torch.nn.Parameter], *args: Any, **kwargs: Any) -> Any:
            extra_parameters = [parameter for parameter in self._channel_parameters() if parameter.grad is not None]
            return clip([*parameters, *extra_parameters] if extra_parameters else parameters, *args, **kwargs)

        return clip_all


class ClearGradients(TrainerCallback):
    """A callback that clears the gradients of the channels' parameters before each step, because the trainer does not
    clear them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Clear the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


class TextTrainer(TextChannels, Trainer):
    """Transformers' Trainer with `channels` added to its loss. Its log includes their terms."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log `logs` together with the mean of each term since the last log."""
        mode = "train" if self.model is not None and self.model.training else "eval"
        means = {name: sum(values) / len(values) for name, values in self._metrics[mode].items() if values}
        super().log({**logs, **means}, start_time)
        self._metrics[mode].clear()


def _is_differentiable(outputs: Any, loss: Tensor, *, needs_hidden: bool) -> bool:
    """Whether the outputs contain all inputs of the channels, with a gradient."""
    tensors = [getattr(outputs, "logits", None)]
    if needs_hidden:
        states = getattr(outputs, "hidden_states", None)
        tensors.append(states[-1] if states else None)
    return all(tensor is not None and tensor.requires_grad == loss.requires_grad for tensor in tensors)
