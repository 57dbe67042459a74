"""Gauges and gradient clipping of a custom loop, in hooks before and after each update of the optimizer. If a step
computes its gradients several times (LBFGS), the first gradients are measured."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch

from oven_core.errors import ConfigError, reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.optim import update_norm
from oven_learner.optim.device_readback import Publish, Readback
from oven_learner.optim.optimizer_gauges import ABSENT_IF_NAN, OptimizerGauges
from oven_learner.optim.rate_readback import RateReadback, before_update
from oven_learner.optim.sharding import Sharding, count_all, local

log = logging.getLogger("oven.learner")

CLIP, GRAD_NORM = "grad.clip", "grad_norm"
LEARNING_RATE = MetricSpec(name="learning_rate", unit="rate used in this step")
SKIPPED = "_skipped"
"""Key of a flag among a step's numbers. It is above 0 if a gradient scaler made the optimizer skip the step."""


class StepGauges:
    """The gauges of one optimizer. `end_step` publishes them together with the loop's metrics."""

    def __init__(
        self,
        rate: RateReadback,
        gauges: OptimizerGauges,
        publish: Publish,
        *,
        clip: Clip | None = None,
        sharding: Sharding | None = None,
        publishes: bool = True,
        no_norm_reason: str = "",
    ) -> None:
        """`publishes` means that this rank publishes its gauges. `no_norm_reason` is the reason why the gradient norm
        is not measured, or an empty string."""
        self._rate, self._gauges, self._publish_metrics = rate, gauges, publish
        self._clip, self._sharding, self._publishes = clip, sharding, publishes
        self._measures_norm = not no_norm_reason
        self._combines_norm = sharding is not None and clip is None and not no_norm_reason
        """Whether the norm is combined with those of the other ranks after the update."""
        self.unmeasured = {**gauges.unmeasured, **({GRAD_NORM: no_norm_reason} if no_norm_reason else {})}
        self._readback = Readback(self._publish, ABSENT_IF_NAN)
        self._numbers: dict[str, torch.Tensor] = {}
        self._shard_norms: dict[str, torch.Tensor | None] = {}
        """Norms that are not yet combined with those of the other ranks."""
        self._step_count = 0  # since the last `end_step`
        self._optimizer = optimizer = rate.scale.optimizer
        post_hook = optimizer.register_step_post_hook(self._after_update)
        self._hooks = [before_update(optimizer, self._before_update), post_hook]

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        unit = "norm before clipping" if self._clip else "norm at the step, after any clipping by the loop"
        norm_specs = (MetricSpec(name=GRAD_NORM, unit=unit),) if self._measures_norm else ()
        return (*norm_specs, LEARNING_RATE, *self._gauges.metric_specs())

    def end_step(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the step. The loop's `metrics` replace gauges of the same name."""
        used_rate = {LEARNING_RATE.name: self._rate.used_rate} if self._step_count else {}
        self._step_count = 0
        published_names = frozenset(self._readback.names) - metrics.keys()
        self._readback.end_step(tick, step, {**used_rate, **metrics}, published_names)

    def settle(self) -> None:
        self._readback.settle()

    def forget(self) -> None:
        """Forget past gradients, because a rollback has changed the weights."""
        self._gauges.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_update(self, is_first: bool) -> None:
        optimizer = self._optimizer
        norm = None
        if self._clip is not None:  # the user has requested clipping, so errors are raised
            norm = self._clip.apply(optimizer)
        elif self._measures_norm:
            norm = self._measure_norm()
        if is_first and (self._publishes or self._sharding is not None):
            self._numbers = {} if norm is None or self._combines_norm else {GRAD_NORM: norm}
            self._shard_norms = {GRAD_NORM: norm} if self._combines_norm else {}
            self._numbers |= self._gauges.before_step()
            found_inf = getattr(optimizer, "found_inf", None)
            if isinstance(found_inf, torch.Tensor):
                self._numbers[SKIPPED] = found_inf

    def _after_update(self, *_: Any) -> None:
        self._step_count += 1
        if self._sharding is not None:  # an error in a collective must end the run, as in the loop's own
            self._numbers |= self._gauges.after_step(self._shard_norms)
        if self._publishes:
            try:
                after = self._gauges.after_step() if self._sharding is None else {}
                self._readback.request(self._numbers | after)
            except Exception as error:
                log.warning("the gauges of a step could not be read: %s", reason(error))

    def _measure_norm(self) -> torch.Tensor | None:
        """Return the norm of the gradients, or of this rank's elements if they are sharded. If that raises an error,
        disable this gauge and return None."""
        optimizer, sharding = self._optimizer, self._sharding
        is_counted = sharding.is_counted if sharding is not None else count_all
        try:
            return gradient_norm(optimizer, update_norm.trained_parameters(optimizer, is_counted))
        except Exception as error:  # for example, sparse gradients
            self._measures_norm = False
            log.warning("%s is no longer measured: %s", GRAD_NORM, reason(error))
            return None

    def _publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics. Omit the gradient norm of a skipped step, because it is often infinite."""
        published_metrics = dict(metrics)
        if published_metrics.pop(SKIPPED, 0.0):
            published_metrics.pop(GRAD_NORM, None)
        self._publish_metrics(tick, step, published_metrics)


class Clip:
    """Gradient clipping before each step, with the same result as `clip_grad_norm_(model.parameters(), norm)`. All
    gradients of the model count, even if its weights are frozen or trained by other optimizers. Without a model, only
    the optimizer's own parameters are clipped."""

    def __init__(self, norm: float, model: Any = None, sharding: Sharding | None = None) -> None:
        """Raises ConfigError if `norm` is not a positive number. With `sharding`, `apply` is a collective."""
        if not (math.isfinite(norm) and norm > 0):
            raise ConfigError(f"clip={norm:g} is not a gradient norm; pass a number above 0, or omit clip=")
        self.norm, self._model, self._sharding = norm, model, sharding

    def register_knob(self, actuators: Actuators, bounds: tuple[float, float]) -> None:
        """Register the knob, with `bounds` as multiples of the initial norm, unless the user has registered one."""
        if CLIP not in actuators:
            low, high = (bound * self.norm for bound in bounds)
            write = partial(setattr, self, "norm")
            actuators.scalar(CLIP, lambda: self.norm, write, low=low, high=high, scale="log", unit="norm")

    def attach(self, optimizer: Any) -> Any:
        """Clip before each step of the optimizer. Return the handle that removes the hook."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        return before_update(optimizer, lambda _: self.apply(optimizer))

    def apply(self, optimizer: Any) -> torch.Tensor | None:
        """Clip the gradients, and return their norm before clipping, or None without gradients."""
        if self._model is not None:
            parameters = list(self._model.parameters())
        else:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        sharding = self._sharding
        if sharding is None:
            norm = gradient_norm(optimizer, parameters)
        else:
            shard_norm = gradient_norm(optimizer, filter(sharding.is_counted, parameters))
            shard_norm = torch.zeros(()) if shard_norm is None else shard_norm
            norm = sharding.sum(shard_norm.double().square()).sqrt().to(shard_norm.dtype)
        if norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.norm, norm)
        return norm


@torch.no_grad()
def gradient_norm(optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor | None:
    """Return the norm of this rank's elements of all gradients together, on their device, or None without gradients. If
    the gradients still contain the scale of a gradient scaler, which a fused optimizer removes, divide by it."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients)
    grad_scale = getattr(optimizer, "grad_scale", None)
    return norm / grad_scale.to(norm.device) if isinstance(grad_scale, torch.Tensor) else norm
