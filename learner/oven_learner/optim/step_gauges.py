"""Measures each optimizer step in a custom loop, with hooks before and after the update.

If a step computes its gradients several times (LBFGS), the first ones are measured.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from oven_core.errors import ConfigError, reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.optim import update_norm
from oven_learner.optim.device_readback import Publish, Readback
from oven_learner.optim.gauges import ABSENT_IF_NAN, OptimizerGauges
from oven_learner.optim.rate_readback import RateReadback, before_update

log = logging.getLogger("oven.learner")

CLIP, GRAD_NORM = "grad.clip", "grad_norm"
RATE = MetricSpec(name="learning_rate", unit="of this step")
SKIPPED = "_skipped"
"""Among the numbers of a step: whether a gradient scaler made the optimizer skip it."""


class StepGauges:
    """The gauges of one optimizer. `end_step` publishes what its last step measured, with the loop's own metrics."""

    def __init__(
        self,
        rate: RateReadback,
        gauges: OptimizerGauges,
        publish: Publish,
        *,
        clip: Clip | None = None,
        published: bool = True,
        unmeasured: str = "",
    ) -> None:
        """`published`: whether this rank publishes. `unmeasured`: why the gradient norm is not measured, if so."""
        self._rate, self._gauges, self._publish_on = rate, gauges, publish
        self._clip, self._published = clip, published
        self._measures_norm = not unmeasured
        self.unmeasured = {**gauges.unmeasured, **({GRAD_NORM: unmeasured} if unmeasured else {})}
        self._readback = Readback(self._publish, ABSENT_IF_NAN)
        self._numbers: dict[str, torch.Tensor] = {}
        self._steps = 0
        self._optimizer = optimizer = rate.scale.optimizer
        self._hooks = [before_update(optimizer, self._before), optimizer.register_step_post_hook(self._after)]

    def announced(self) -> tuple[MetricSpec, ...]:
        unit = "before clipping" if self._clip else "at the step, after clipping of the loop's own"
        norm = (MetricSpec(name=GRAD_NORM, unit=unit),) if self._measures_norm else ()
        return (*norm, RATE, *self._gauges.announced())

    def end_step(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the step. `metrics` of the loop win over gauges of the same name."""
        rate = {RATE.name: self._rate.used} if self._steps else {}
        self._steps = 0
        gauges = frozenset(self._readback.names) - metrics.keys()
        self._readback.end_step(tick, step, {**rate, **metrics}, gauges)

    def settle(self) -> None:
        self._readback.settle()

    def forget(self) -> None:
        """Forget past gradients: something other than a step has moved the weights."""
        self._gauges.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before(self, first: bool) -> None:
        optimizer = self._optimizer
        norm = None
        if self._clip is not None:  # the user asked for clipping, so a failure is raised
            norm = self._clip.apply(optimizer)
        elif self._measures_norm:
            norm = self._norm_or_give_up()
        if self._published and first:
            self._numbers = {} if norm is None else {GRAD_NORM: norm}
            self._numbers |= self._gauges.before_step()
            skipped = getattr(optimizer, "found_inf", None)
            if isinstance(skipped, torch.Tensor):
                self._numbers[SKIPPED] = skipped

    def _after(self, *_: Any) -> None:
        self._steps += 1
        if self._published:
            try:
                self._readback.request(self._numbers | self._gauges.after_step())
            except Exception as error:
                log.warning("a step's gauges are lost: %s", reason(error))

    def _norm_or_give_up(self) -> torch.Tensor | None:
        try:
            return gradient_norm(self._optimizer, update_norm.trained(self._optimizer))
        except Exception as error:  # for example, sparse gradients
            self._measures_norm = False
            log.warning("%s is no longer measured: %s", GRAD_NORM, reason(error))
            return None

    def _publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Omit the norm of a skipped step: gradients that were never used may well be infinite."""
        published = dict(metrics)
        if published.pop(SKIPPED, 0.0):
            published.pop(GRAD_NORM, None)
        self._publish_on(tick, step, published)


class Clip:
    """Clips exactly like `clip_grad_norm_(model.parameters(), norm)`; without a model, over the optimizer's groups.

    The gradients of frozen weights and of the model's other optimizers are clipped with them, before this optimizer's
    step.
    """

    def __init__(self, norm: float, model: Any = None) -> None:
        """Raises ConfigError if `norm` is not a positive number."""
        if not (math.isfinite(norm) and norm > 0):
            raise ConfigError(f"clip={norm:g} is not a gradient norm; give one above 0, or leave it out")
        self.norm, self._model = norm, model

    def announce(self, actuators: Actuators, bounds: tuple[float, float]) -> None:
        """Register the knob, with `bounds` as multiples of the initial norm, unless the user has an actuator of that
        name."""
        if CLIP not in actuators:
            low, high = (bound * self.norm for bound in bounds)
            actuators.scalar(
                CLIP, lambda: self.norm, lambda norm: setattr(self, "norm", norm), low=low, high=high, scale="log",
                unit="norm",
            )  # fmt: skip

    def always(self, optimizer: Any) -> Any:
        """Clip before each step from now on. Return the handle that removes the hook."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        return before_update(optimizer, lambda _: self.apply(optimizer))

    def apply(self, optimizer: Any) -> torch.Tensor | None:
        """Clip the gradients, and return their norm before."""
        groups = optimizer.param_groups
        owner = self._model.parameters() if self._model is not None else (p for g in groups for p in g["params"])
        parameters = list(owner)
        norm = gradient_norm(optimizer, parameters)
        if norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.norm, norm)
        return norm


@torch.no_grad()
def gradient_norm(optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor | None:
    """Return the norm of the parameters' gradients as one vector, on their device; None without gradients.

    The factor of a gradient scaler is divided out if that is left to a fused optimizer. A collective if gradients are
    sharded.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients)
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    factor = getattr(optimizer, "grad_scale", None)
    return norm / factor.to(norm.device) if isinstance(factor, torch.Tensor) else norm
