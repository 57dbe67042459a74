"""The base class of channels, which are additional, weighted loss terms. ChannelTrainer and TextTrainer also share this
module's mixin for checkpoints, and its function that logs a channel's metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.actuators import Actuators

STATE_FILE = "channels.pt"
"""Name of the checkpoint file that stores the state of all channels with a module."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The scored rollouts of one rank. Each field has one entry per completion, unless stated otherwise."""

    rows: Sequence[Mapping[str, Any]]
    """Rows of the dataset."""
    prompts: Sequence[Any]
    """Texts or conversations as the policy received them, including the environment's reset message."""
    completion_ids: Sequence[Sequence[int]]
    """Token ids without padding, including tool output."""
    rewards: Tensor
    """Rewards of all ranks, (ranks · B). Each is a weighted sum over reward functions, or NaN if no function scored."""
    tools: Sequence[Sequence[Any]]
    """Tools that were available when the row's prompt was rendered."""
    environments: Sequence[Any] | None
    """Environments of the rows after their rollouts."""
    group_size: int
    """Completions per prompt. A prompt's completions are adjacent, also across ranks."""


class TermSum(NamedTuple):
    """The sum of a term over one micro-batch, with its gradient, and the number of tokens in it. Both are scalars."""

    total: Tensor
    token_count: Tensor
    gauges: Mapping[str, tuple[Tensor, Tensor]] = {}
    """For each gauge, its sum over tokens or rows, and their number. Neither has a gradient."""


class Channel(ABC):
    """An additional loss term. `weight` is its initial weight, and `maximum` is the highest weight that decisions may
    set. Raises ConfigError unless 0 <= weight <= maximum and maximum is positive and finite."""

    name: ClassVar[str]
    input_kind: ClassVar[Literal["completions", "logits", "hidden"]] = "completions"
    """Input of the term: "completions" of a GRPOTrainer, or the model's "logits" or last "hidden" states on a
    Trainer's texts (oven_learner.losses.text_trainer)."""
    unit: str
    """Unit of the published term."""
    gauges: ClassVar[tuple[MetricSpec, ...]] = ()
    """Additional metrics, published as `channel/<name>/<gauge>`. Names here omit the prefix."""

    def __init__(self, weight: float = 0.0, *, maximum: float = 1.0) -> None:
        if not (math.isfinite(maximum) and 0 <= weight <= maximum and maximum > 0):
            raise ConfigError(
                f"channel.{self.name}: weight {weight:g} and maximum {maximum:g} are invalid; expected "
                "0 <= weight <= maximum, and a finite maximum above 0"
            )
        self._weight, self._maximum = float(weight), float(maximum)
        self._trainer: Any = None

    @property
    def weight(self) -> float:
        """Weight of the term in the loss of the next step."""
        return self._weight

    def set_weight(self, weight: float) -> None:
        """Set the weight, starting with the next step. Raises ConfigError if the term cannot be computed."""
        if weight > 0:
            self.check()
        self._weight = weight

    def bind(self, trainer: Any) -> None:
        """Attach the channel to its trainer, once. Raises ConfigError if it cannot work with this trainer."""
        if self._trainer is not None:
            raise ConfigError(f"channel.{self.name} already belongs to another trainer; create one channel per trainer")
        self._trainer = trainer

    def check(self) -> None:
        """Raise ConfigError if the term cannot be computed. Called before training and by `set_weight`."""
        return

    @property
    def module(self) -> nn.Module | None:
        """Trainable state that the channel adds to the model, or None. The trainer's optimizer trains its parameters.
        Checkpoints and rollback snapshots include it."""
        return None

    def columns(self, rollouts: Rollouts) -> dict[str, Any]:
        """Return additional batch columns, with one entry per row. The trainer passes them through unchanged."""
        return {}

    @abstractmethod
    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the sum of the term over this micro-batch, and its number of tokens."""

    def register_knob(self, actuators: Actuators) -> None:
        """Register the weight as the knob `channel.<name>`, from 0 to the maximum."""
        actuators.scalar(
            f"channel.{self.name}",
            lambda: self._weight,
            self.set_weight,
            low=0.0,
            high=self._maximum,
            unit=f"× {self.unit}, in the loss",
            moves_own_metric=self.input_kind != "completions",  # a Trainer's metric is the loss, with this term
        )

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the metrics that the trainer logs for this channel: the term, its weight and its gauges."""
        return (
            MetricSpec(name=f"channel/{self.name}", better="down", unit=self.unit),
            MetricSpec(name=f"channel/{self.name}/weight", unit="weight in the loss of this step"),
            *(gauge.model_copy(update={"name": f"channel/{self.name}/{gauge.name}"}) for gauge in self.gauges),
        )


def check_channels(channels: Sequence[Channel], provided_inputs: Collection[str], trainer: str) -> None:
    """Raise ConfigError for duplicate names, and for a channel whose input this trainer does not provide."""
    names = [channel.name for channel in channels]
    if len(set(names)) < len(names):
        raise ConfigError(f"duplicate channels in {', '.join(names)}; pass each channel once")
    for channel in channels:
        if channel.input_kind not in provided_inputs:
            suitable_trainer = "ChannelTrainer" if channel.input_kind == "completions" else "TextTrainer"
            raise ConfigError(
                f"channel.{channel.name} needs {channel.input_kind}, which a {trainer} does not provide; use it with a "
                f"{suitable_trainer}"
            )


def log_term(trainer: Any, channel: Channel, term_sum: TermSum, mode: Literal["train", "eval"]) -> None:
    """Add the term, its weight and its gauges to the trainer's own metrics of this step, which attached trainers
    publish. All ranks must call it, because it sums over ranks. Values that no rank measured are not logged."""
    zero = torch.zeros_like(term_sum.token_count)
    tensors = [term_sum.total, term_sum.token_count]  # alternately a sum, and the number of its terms
    for gauge in channel.gauges:
        tensors += term_sum.gauges.get(gauge.name, (zero, zero))
    local_sums = torch.stack([tensor.to(term_sum.total.dtype) for tensor in tensors]).detach()
    sums = trainer.accelerator.reduce(local_sums, reduction="sum").tolist()
    suffixes = ["", *(f"/{gauge.name}" for gauge in channel.gauges)]
    metrics = trainer_internals.all_metrics(trainer)[mode]
    for suffix, total, count in zip(suffixes, sums[::2], sums[1::2], strict=True):
        if count:
            metrics[f"channel/{channel.name}{suffix}"].append(total / count)
    if sums[1]:
        metrics[f"channel/{channel.name}/weight"].append(channel.weight)


class ChannelCheckpoints:
    """A mixin for trainers with `channels`. It checks them before training, and adds their state to checkpoints."""

    channels: Sequence[Channel]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train. Raises ConfigError first if an active channel cannot be computed."""
        for channel in self.channels:
            channel.set_weight(channel.weight)  # raises if the weight is above 0 and the term cannot be computed
        return super().train(*args, **kwargs)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        trainer: Any = self
        states = {channel.name: channel.module.state_dict() for channel in self.channels if channel.module is not None}
        if states and trainer.args.should_save:
            torch.save(states, Path(output_dir, STATE_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the state. Raises ConfigError if the checkpoint has other channels, to which its optimizer state would
        belong."""
        states = _read_state(self.channels, checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        for channel in self.channels:
            if channel.name in states and channel.module is not None:
                try:
                    channel.module.load_state_dict(states[channel.name])
                except RuntimeError as error:
                    raise ConfigError(
                        f"the checkpoint's channel.{channel.name} does not fit this model: {error}; resume with the "
                        "model of the checkpoint"
                    ) from None


def _read_state(channels: Iterable[Channel], checkpoint: str | None) -> dict[str, Any]:
    """Return the channels' states in a checkpoint, or {} if it is None. Raises ConfigError if it has other channels."""
    if checkpoint is None:
        return {}
    expected = [channel.name for channel in channels if channel.module is not None]
    file = Path(checkpoint, STATE_FILE)
    states: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
    if states.keys() != set(expected):
        raise ConfigError(
            f"{checkpoint} has the state of {_format_names(states)}, but this trainer has {_format_names(expected)}; "
            "resume with the channels of the checkpoint"
        )
    return states


def _format_names(channels: Iterable[str]) -> str:
    return ", ".join(f"channel.{name}" for name in channels) or "no channels"
