"""Measurements of each optimizer step in the user's own loop, by hooks before and after the update.

If a step computes its gradients several times (LBFGS), the first ones are measured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from oven_core.errors import reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.optim import gradient_clip as clipping
from oven_learner.optim.device_readback import Publish, Readback
from oven_learner.optim.gauges import ABSENT_IF_NAN, OptimizerGauges
from oven_learner.optim.pre_update_hook import before_update
from oven_learner.optim.rate_readback import RateReadback

log = logging.getLogger("oven.learner")

GRAD_NORM = "grad_norm"
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
        clip: clipping.Clip | None = None,
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
            norm = clipping.gradient_norm(optimizer)
            self._clip.apply(optimizer, norm)
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
            return clipping.gradient_norm(self._optimizer)
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
