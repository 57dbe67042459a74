"""What the training loops of the trials set's tasks have in common: a batch, a loss, a step of a torch optimizer.

The loop and its gauges are what `oven.connect` and `oven.attach` find in a user's script: metrics, names and bounds of
knobs are theirs. A task says what a batch is, what is lost on it, how the rate goes, and what is measured held out.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from oven_bench.gym.fault import NOTHING, Fault, Step
from oven_bench.gym.task_table import Kind
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.optim.gauges import ABSENT_IF_NAN, OptimizerGauges
from oven_learner.optim.lr_scale import USER_BOUNDS

EVALUATE_EVERY = 20
"""Gradient steps between two evaluations."""
ANY_LOOP = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="grad_norm", unit="before clipping"),
    MetricSpec(name="learning_rate", unit="of this step"),
)
B = TypeVar("B")


class TorchTrainee(ABC, Generic[B]):
    """One seed's run. What a batch holds is a function of seed, cursor and settings alone.

    `optimizer.lr_scale` multiplies the rate of the user's schedule; every other knob replaces a setting once it is set,
    and reads it before. The schedule goes by the updates that the weights have behind them, which a rollback takes
    back.
    """

    kind: Kind
    evaluate_every = EVALUATE_EVERY

    def __init__(
        self, seed: int, model: nn.Module, optimizer: torch.optim.Optimizer, *metrics: tuple[MetricSpec, ...]
    ) -> None:
        """`metrics` are the task's, behind those that any loop has. The learning rate in `optimizer` is not used."""
        self.seed = seed
        self.model, self.optimizer = model, optimizer
        self.gradient_steps = self.cursor = self.updates = 0
        self._gauges = OptimizerGauges(optimizer, model, published=True)
        self.metrics = (*ANY_LOOP, *self._gauges.announced(), *(spec for some in metrics for spec in some))
        self.settings = self.user_settings()
        self._scale, self._replaced, self._asked = 1.0, dict[str, float](), False
        self.actuators = Actuators()
        self.actuators.scalar(
            "optimizer.lr_scale",
            lambda: self._scale,
            lambda value: setattr(self, "_scale", value),
            low=USER_BOUNDS[0],
            high=USER_BOUNDS[1],
            scale="log",
            unit="× the schedule",
            risky=True,
            scales_rate=True,
        )
        self.actuators.action(EVALUATE, self._ask, effect="measures")

    @abstractmethod
    def user_settings(self) -> dict[str, float]:
        """At this step: `learning_rate` by the schedule, `clip` where the loop clips, and the task's own."""

    @abstractmethod
    def read(self, step: BatchStep[B]) -> B:
        """What the step reads, before a fault meets it."""

    @abstractmethod
    def loss(self, step: BatchStep[B]) -> tuple[Tensor, dict[str, float]]:
        """Of `step.batch`, with what else was measured on it."""

    @abstractmethod
    def quality(self) -> float:
        """Held out, lower is better; of a broken run the worst that the task knows."""

    @abstractmethod
    def evaluated(self) -> dict[str, float]:
        """The user's own evaluation."""

    @abstractmethod
    def each_example(self) -> Tensor:
        """The held-out metric that stands for the whole, of each of its examples: float32 [examples]."""

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """One optimizer step. A loss that depends on no weight makes none, and costs the time of one all the same."""
        fault = fault or NOTHING
        self.settings.update(self.user_settings())
        step = self.step(fault)
        fault.apply_settings(step)
        fault.apply_weights(step)
        self.model.train()
        loss, metrics = self.loss(step)
        loss = fault.apply_loss(loss, step)
        metrics = {"loss": float(loss.detach()), "learning_rate": self.learning_rate} | metrics
        if loss.requires_grad:
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
            fault.apply_gradients(step)
            metrics |= self._update()
            self.updates += 1
        self.gradient_steps += 1
        self.cursor += 1
        if self.gradient_steps % self.evaluate_every == 0 or self._asked:
            self._asked = False
            self.model.eval()
            with torch.no_grad():
                metrics |= self.evaluated()
        return metrics

    def step(self, fault: Fault = NOTHING) -> BatchStep[B]:
        """The one that comes next."""
        return BatchStep(self, fault)

    def state(self) -> Mapping[str, Any]:
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "cursor": self.cursor,
            "updates": self.updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.cursor, self.updates = state["cursor"], state["updates"]

    def branch_state(self) -> Mapping[str, Any]:
        counts = {"gradient_steps": self.gradient_steps, "asked": self._asked}
        return {"state": self.state(), "scale": self._scale, "replaced": dict(self._replaced), **counts}

    def restore_branch(self, state: Mapping[str, Any]) -> None:
        self.restore(state["state"])
        self._scale, self._replaced = state["scale"], dict(state["replaced"])
        self.gradient_steps, self._asked = state["gradient_steps"], state["asked"]

    @torch.no_grad()
    def examples(self) -> list[float]:
        """The held-out metric of each of its examples; NaN of a broken run."""
        self.model.eval()
        each = self.each_example()
        return [math.nan] * len(each) if self.broken() else [float(one) for one in each]

    @property
    def learning_rate(self) -> float:
        """The setting, times what a knob makes of it."""
        return self.settings["learning_rate"] * self._scale

    def knob(self, setting: str) -> float:
        """A setting, or what a knob replaced it by."""
        return self._replaced.get(setting, self.settings[setting])

    def announce(self, setting: str, name: str, low: float, high: float, *, unit: str, log: bool = True) -> None:
        """The knob of a setting."""
        self.actuators.scalar(
            name,
            lambda: self.knob(setting),
            lambda value: self._replaced.update({setting: value}),
            low=low,
            high=high,
            scale="log" if log else "linear",
            unit=unit,
        )

    def announce_times(self, setting: str, name: str, *, unit: str) -> None:
        """The same, within the usual multiples of the user's own."""
        own = self.settings[setting]
        self.announce(setting, name, own * USER_BOUNDS[0], own * USER_BOUNDS[1], unit=unit)

    def announce_weight_decay(self) -> None:
        high = max(10 * self.settings["weight_decay"], 0.5)
        unit = "× rate, of each weight in a step"
        self.announce("weight_decay", "optimizer.weight_decay", 0.0, high, unit=unit, log=False)

    def broken(self) -> bool:
        """Whether a weight is not a number."""
        return not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def _update(self) -> dict[str, float]:
        """Clip, step, and what is seen of it."""
        parameters = [*self.model.parameters()]
        clip = self.knob("clip") if "clip" in self.settings else math.inf
        metrics = {"grad_norm": float(nn.utils.clip_grad_norm_(parameters, clip))}
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
            if "weight_decay" in self.settings:
                group["weight_decay"] = self.knob("weight_decay")
        seen = self._gauges.before_step()
        self.optimizer.step()
        seen |= self._gauges.after_step()
        found = {name: float(value) for name, value in seen.items()}
        return metrics | {name: v for name, v in found.items() if not (name in ABSENT_IF_NAN and math.isnan(v))}

    def _ask(self, _: float | None) -> float:
        """The next step evaluates, whenever it would have."""
        self._asked = True
        return float(self.gradient_steps)


class BatchStep(Step, Generic[B]):
    """One step of such a trainee."""

    def __init__(self, trainee: TorchTrainee[B], fault: Fault) -> None:
        super().__init__(trainee, fault)
        self._trainee, self.fault = trainee, fault

    @property
    def learning_rate(self) -> float:
        return self._trainee.learning_rate

    @property
    def weight_decay(self) -> float:
        return self._trainee.knob("weight_decay")

    @cached_property
    def batch(self) -> B:
        """What is read, as the fault leaves it."""
        made: B = self.fault.apply_batch(self._trainee.read(self), self)
        return made
