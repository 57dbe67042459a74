"""A trainee for the gym's tests, a linear model on a line, with all that the protocol asks; faults, and an arm."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from random import Random
from typing import Any, Self, TypeVar

import torch

from oven_bench.fixed_rules import Change, RuleLink
from oven_bench.gym.fault import NOTHING, Fault, Step, Trainee, fault
from oven_bench.gym.seeded_draws import generator, integer, uniform
from oven_bench.gym.task_table import Kind
from oven_core.protocol.messages import MetricSpec, Observation, RunStarted
from oven_learner.actuators import Actuators
from oven_learner.link.link_interface import Link

RATE, WORST = 0.05, 10.0


class Line:
    """Four weights, momentum and a stream of noisy points."""

    metrics: tuple[MetricSpec, ...] = (
        MetricSpec(name="loss", better="down"),
        MetricSpec(name="grad_norm"),
        MetricSpec(name="eval/loss", better="down", held_out=True),
    )

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind: Kind = kind
        self.seed = seed
        self.gradient_steps = self.cursor = 0
        self.model: torch.nn.Module = torch.nn.Linear(4, 1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator("weights", seed)))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.settings = self._own()
        self.scale, self.clip = 1.0, 1.0
        self._truth = torch.randn(4, generator=generator("truth", seed))
        self.actuators = Actuators()
        self.actuators.scalar(
            "optimizer.lr_scale",
            lambda: self.scale,
            lambda value: setattr(self, "scale", value),
            low=0.001,
            high=100,
            scale="log",
        )
        self.actuators.scalar(
            "grad.clip", lambda: self.clip, lambda value: setattr(self, "clip", value), low=0.01, high=10, scale="log"
        )
        self.actuators.action("data.skip", self._skip)

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        fault = fault or NOTHING
        self.settings.update(self._own())
        step = Step(self, fault)
        fault.apply_settings(step)
        fault.apply_weights(step)
        points = fault.apply_batch(self._points(("train", self.cursor), 8), step)
        self.optimizer.zero_grad()
        loss = fault.apply_loss(self._loss(points), step)
        loss.backward()  # type: ignore[no-untyped-call]
        fault.apply_gradients(step)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.param_groups[0]["lr"] = self.settings["learning_rate"] * self.scale
        self.optimizer.step()
        self.gradient_steps += 1
        self.cursor += 1
        metrics = {"loss": loss.item(), "grad_norm": norm.item()}
        if self.gradient_steps % 20 == 0:
            metrics["eval/loss"] = self.quality()
        return metrics

    @torch.no_grad()
    def quality(self) -> float:
        loss = self._loss(self._points(("test",), 64)).item()
        return min(loss, WORST) if math.isfinite(loss) else WORST

    def state(self) -> Mapping[str, Any]:
        return copy.deepcopy(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "cursor": self.cursor}
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.cursor = state["cursor"]

    @torch.no_grad()
    def examples(self) -> list[float]:
        return [self._loss(point[None]).item() for point in self._points(("test",), 64)]

    def _own(self) -> dict[str, float]:
        return {"learning_rate": RATE}

    def _points(self, key: tuple[object, ...], count: int) -> torch.Tensor:  # float32 [count, 5]
        drawn = generator(self.seed, *key)
        inputs = torch.randn(count, 4, generator=drawn)
        noise = 0.3 * torch.randn(count, generator=drawn)
        return torch.cat([inputs, (inputs @ self._truth + noise)[:, None]], dim=1)

    def _loss(self, points: torch.Tensor) -> torch.Tensor:
        misses: torch.Tensor = self.model(points[:, :4])[:, 0] - points[:, 4]
        return misses.square().mean()

    def _skip(self, batches: float | None) -> tuple[float, float]:
        before, self.cursor = self.cursor, self.cursor + int(batches or 0)
        return float(before), float(self.cursor)


T = TypeVar("T", bound=Trainee)


def resumed(trainee: T) -> T:
    """Return a copy at the same step."""
    another = type(trainee)(trainee.seed)  # type: ignore[call-arg]
    another.restore(trainee.state())
    another.gradient_steps = trainee.gradient_steps
    return another


def weights(trainee: Trainee) -> torch.Tensor:
    """Return a copy of all weights, flat."""
    return torch.nn.utils.parameters_to_vector(trainee.model.parameters()).detach()


def line(kind: Kind, seed: int) -> Trainee:
    return Line(kind, seed)


@fault("line.too_high", kind="pretraining")
class TooHigh(Fault):
    """The learning rate is set too high, and stays so."""

    factor: float = uniform(20, 100)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


@fault("line.too_low", kind="pretraining")
class TooLow(Fault):
    """The learning rate is too low from the start."""

    factor: float = uniform(0.001, 0.01)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


@fault("line.bad_stretch", kind="pretraining")
class BadStretch(Fault):
    """The targets of a stretch of the data are noise."""

    length: int = integer(5, 30)

    def batch(self, batch: torch.Tensor, step: Step) -> torch.Tensor:
        return torch.cat(
            [batch[:, :4], 30 * torch.randn(len(batch), 1, generator=generator("bad", step.cursor))], dim=1
        )


@fault("line.nan", kind="pretraining")
class NotANumber(Fault):
    """All gradients of one step are NaN."""

    length: int = 1

    def gradients(self, step: Step) -> None:
        for parameter in step.model.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)


@fault("line.plain", kind="pretraining", healthy=True)
class Plain(Fault):
    """Nothing is wrong."""


FAMILIES: tuple[type[Fault], ...] = (TooHigh, TooLow, BadStretch, NotANumber, Plain)


class Script:
    """Sets what it was told to, at the ticks that it was told."""

    name = "script"
    keeps_best = False

    def __init__(self, plan: dict[int, list[Change]]) -> None:
        self._plan = plan

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(self)

    def start(self, run: RunStarted) -> None: ...

    def look(self, observation: Observation) -> list[Change]:
        return self._plan.get(observation.tick, [])
