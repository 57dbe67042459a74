"""A training job small enough to be run thousands of times, and open enough that a fault can get at all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from oven_bench.gym.fault import Fault, Kind
from oven_controller.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

__all__ = ["Kind", "Trainee"]


class Trainee(Protocol):
    """One seed's job. All that a step depends on is in `state`: the same state and the same knobs give the same next
    step, bit for bit, in this process and in another.

    Two clocks: `gradient_steps` counts every optimizer step that was computed, those included that a rollback threw
    away, and never goes back; `cursor` is the position in the data, which a rollback takes back with the weights and a
    skip moves on. A fault of the machine or of the settings goes by the first, a fault of the data by the second.
    """

    kind: Kind
    seed: int
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    actuators: Actuators
    """What an arm may turn: `optimizer.lr_scale`, `grad.clip`, `run.rollback`, `data.skip`, … (by kind)."""
    metrics: tuple[MetricSpec, ...]
    settings: dict[str, float]
    """The user's own settings, which the knobs multiply or replace and which a fault may get wrong: `learning_rate`,
    `weight_decay`, `clip`, … (by kind). Read anew at each step."""
    gradient_steps: int
    cursor: int

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """One optimizer step under a fault, or under none. Its metrics, by the names that a real run of the kind
        publishes; what is not a finite number is in there as such, what was not measured is not."""

    def quality(self) -> float:
        """On data that no step sees, lower is better: nats a byte (pretraining), 1 − accuracy (GRPO). NaN is the
        largest loss that the kind knows, so that a broken run has a score."""

    def state(self) -> Mapping[str, Any]:
        """A copy of weights, optimizer, data position and generators, that training cannot touch: what a rollback puts
        back. Settings, knobs and `gradient_steps` are not in it."""

    def restore(self, state: Mapping[str, Any]) -> None: ...
