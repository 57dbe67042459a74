"""Transformers' Trainer with weighted channels in its loss, for language models on plain text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, check_channels, load_state, read_state, record, save_state

LOGITS, HIDDEN = "oven_logits", "oven_hidden"
"""Keys that are added to the batch for channels: the model's logits (B, T, V) and its last hidden states (B, T, H),
both with their gradient."""
IGNORED = -100
"""Label of tokens that do not count: the default `ignore_index` of cross_entropy and transformers."""


class TextChannels:
    """A mixin for a Trainer class: `class Mine(TextChannels, Trainer)`. `channels` are added to the training loss while
    their weights are above 0. Evaluation uses the trainer's own loss alone, so that its readings stay comparable.

    Raises ConfigError for duplicate channels, for one that reads a GRPOTrainer's completions, and under FSDP and
    DeepSpeed, whose sharded parameters are not supported.

    Written for transformers 5.23 (`compute_loss`, `create_optimizer`, `_clip_grad_norm`,
    `_save_optimizer_and_scheduler`, `_load_optimizer_and_scheduler`).
    """

    _metrics: Any
    """Mode → metric → values since the last log. This is TRL's convention, and attached trainers publish from it."""

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
            trainer.add_callback(ClearGradients(self._channel_parameters()))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train. Raises ConfigError first if an active channel cannot be computed."""
        for channel in self.channels:
            channel.set_weight(channel.weight)
        return super().train(*args, **kwargs)  # type: ignore[misc]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the trainer's own loss plus the active channels, or the trainer's loss alone in evaluation."""
        whole: Any = super().compute_loss  # type: ignore[misc]
        active = [channel for channel in self.channels if channel.weight]
        if not active or not model.training:
            return whole(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)
        extra_outputs = {"output_hidden_states": True} if any(channel.reads == "hidden" for channel in active) else {}
        outputs: Any = None
        if self._fused:
            loss = whole(model, {**inputs}, num_items_in_batch=num_items_in_batch)
        else:
            loss, outputs = whole(model, {**inputs, **extra_outputs}, True, num_items_in_batch=num_items_in_batch)
        if not _differentiable(outputs, loss, hidden=bool(extra_outputs)):
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"}, **extra_outputs)
        batch = {**inputs, LOGITS: outputs.logits}
        if extra_outputs:
            batch[HIDDEN] = outputs.hidden_states[-1]
        scaled = self._scaled_by_the_loss(num_items_in_batch)
        for channel in active:
            loss = loss + channel.weight * self._term(channel, model, batch, scaled)
        return (loss, outputs) if return_outputs else loss

    @property
    def _fused(self) -> bool:
        """Whether the trainer's loss has no differentiable logits, for example TRL's SFTTrainer. Channels then run the
        model a second time. They also do so when a loss omits logits (Liger)."""
        return any(cls.__name__ == "SFTTrainer" for cls in type(self).__mro__)

    def _term(self, channel: Channel, model: Any, inputs: dict[str, Any], scaled: bool) -> Tensor:
        """Return the micro-batch's mean of the term, divided by the number of micro-batches per step."""
        trainer: Any = self
        with trainer.accelerator.autocast():
            tally = channel.tally(model, inputs)
        record(self, channel, tally, "train")
        parts = trainer.current_gradient_accumulation_steps if scaled else 1
        return tally.total / tally.number.clamp(min=1) / parts

    def _scaled_by_the_loss(self, num_items: Any) -> bool:
        """Whether the trainer treats the loss as its share of the step and does not divide it (`training_step`)."""
        trainer: Any = self
        if trainer.loss_is_scaled_for_ga is not None:
            return bool(trainer.loss_is_scaled_for_ga)
        return bool(
            (trainer.model_accepts_loss_kwargs and num_items is not None) or trainer.compute_loss_func is not None
        )

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trainer's optimizer with the channels' parameters: matrices in the first group, and vectors in the
        last, without weight decay. Parameters without a gradient do not move and have no moments."""
        optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        groups = getattr(optimizer, "optimizer", optimizer).param_groups
        held = {id(parameter) for group in groups for parameter in group["params"]}
        for parameter in self._channel_parameters():
            if id(parameter) not in held:
                groups[0 if parameter.ndim > 1 else -1]["params"].append(parameter)
        return optimizer

    def _channel_parameters(self) -> list[torch.nn.Parameter]:
        modules = [channel.module for channel in self.channels]
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip by one norm over all parameters that the step updates."""
        trainer: Any = self
        moved = [parameter for parameter in self._channel_parameters() if parameter.grad is not None]
        if not moved:
            return super()._clip_grad_norm(model)  # type: ignore[misc]
        return trainer.accelerator.clip_grad_norm_([*model.parameters(), *moved], trainer.args.max_grad_norm)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        save_state(self, output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Raise ConfigError if the checkpoint has other channels, because the optimizer's state belongs to them."""
        states = read_state(self, checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        load_state(self, states)


class ClearGradients(TrainerCallback):
    """A callback that clears the gradients of the channels' parameters before each step; the trainer skips them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Clear the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


class TextTrainer(TextChannels, Trainer):
    """Transformers' Trainer with `channels` added to its loss. Its log includes their terms."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the mean of each term since the last log."""
        mode = "train" if self.model is not None and self.model.training else "eval"
        means = {name: sum(values) / len(values) for name, values in self._metrics[mode].items() if values}
        super().log({**logs, **means}, start_time)
        self._metrics[mode].clear()


def _differentiable(outputs: Any, loss: Tensor, *, hidden: bool) -> bool:
    """Whether the outputs contain all inputs of the channels, with a gradient."""
    states = getattr(outputs, "hidden_states", None) if hidden else (None,)
    tensors = (getattr(outputs, "logits", None), *((states[-1],) if hidden and states else ()))
    return bool(states) and all(tensor is not None and tensor.requires_grad == loss.requires_grad for tensor in tensors)
