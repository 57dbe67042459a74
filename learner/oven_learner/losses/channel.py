"""What a channel is: a loss term with a weight, a knob and metrics of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.losses.generated import Generated


class Tally(NamedTuple):
    """A term over one micro-batch: the sum, with its gradient, and the number that it is a mean over; two scalars."""

    total: Tensor
    number: Tensor
    gauges: Mapping[str, tuple[Tensor, Tensor]] = {}
    """Of each of the channel's gauges the sum and the number that it is a mean over, without a gradient."""


class Channel(ABC):
    """`weight` is where it begins, and `maximum` how far decisions may raise it.

    Raises ConfigError unless 0 <= weight <= maximum, with a positive and finite maximum.
    """

    name: ClassVar[str]
    reads: ClassVar[Literal["completions", "logits", "hidden"]] = "completions"
    """What its term is computed from: the completions of a GRPOTrainer, or of a text that a Trainer learns the model's
    logits or its last hidden states (oven_learner.losses.text_trainer)."""
    unit: str
    """Of the term, as it is published."""
    gauges: ClassVar[tuple[MetricSpec, ...]] = ()
    """What is published of it beside the term and its weight, as `channel/<name>/<gauge>`; names without the prefix."""

    def __init__(self, weight: float = 0.0, *, maximum: float = 1.0) -> None:
        if not (math.isfinite(maximum) and 0 <= weight <= maximum and maximum > 0):
            raise ConfigError(
                f"channel.{self.name}: weight {weight:g} with a maximum of {maximum:g}; give 0 <= weight <= maximum, "
                "and a finite maximum above 0"
            )
        self._weight, self._maximum = float(weight), float(maximum)
        self._trainer: Any = None

    @property
    def weight(self) -> float:
        """How much the term counts in the next step's loss."""
        return self._weight

    def set_weight(self, weight: float) -> None:
        """Acts on the next step's loss. Raises ConfigError when there is nothing to compute the term from."""
        if weight > 0:
            self.check()
        self._weight = weight

    def bind(self, trainer: Any) -> None:
        """Called once by the trainer it belongs to. Raises ConfigError for one that it cannot work with."""
        if self._trainer is not None:
            raise ConfigError(f"channel.{self.name} belongs to another trainer; make one for each")
        self._trainer = trainer

    def check(self) -> None:
        """Raises ConfigError while the term cannot be computed. Asked before training and before a weight above 0."""
        return

    @property
    def module(self) -> nn.Module | None:
        """What it keeps beside the model, and trains by the trainer's optimizer where it has parameters; None: nothing.
        It is a part of checkpoints, and of the copies for rollback."""
        return None

    def columns(self, generated: Generated) -> dict[str, Any]:
        """What it wants carried in the batch, one entry a row; kept, but not computed on."""
        return {}

    @abstractmethod
    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """The sum of the term over the tokens of this micro-batch, or what else it is a mean over, and their number."""

    def announce(self, actuators: Actuators) -> None:
        """Registers the weight as the actuator `channel.<name>`, from 0 to the maximum."""
        actuators.scalar(
            f"channel.{self.name}",
            lambda: self._weight,
            self.set_weight,
            low=0.0,
            high=self._maximum,
            unit=f"× {self.unit}, in the loss",
            moves_own_metric=self.reads != "completions",  # a Trainer's metric is the loss, which the term is part of
        )

    def announced(self) -> tuple[MetricSpec, ...]:
        """The metrics that the trainer logs of it: the term, its weight, and its gauges."""
        return (
            MetricSpec(name=f"channel/{self.name}", better="down", unit=self.unit),
            MetricSpec(name=f"channel/{self.name}/weight", unit="in the loss of this step"),
            *(gauge.model_copy(update={"name": f"channel/{self.name}/{gauge.name}"}) for gauge in self.gauges),
        )


def check_channels(channels: Sequence[Channel], reads: Collection[str], trainer: str) -> None:
    """Raises ConfigError for two channels of a name, and for one that reads what this trainer does not have."""
    names = [channel.name for channel in channels]
    if len(set(names)) < len(names):
        raise ConfigError(f"channels {', '.join(names)}: each may be given once")
    for channel in channels:
        if channel.reads not in reads:
            kind = "ChannelTrainer" if channel.reads == "completions" else "TextTrainer"
            raise ConfigError(
                f"channel.{channel.name} reads {channel.reads}, which a {trainer} does not have; give it to a {kind}"
            )
