"""What each step of an optimizer measures by itself, in one's own loop: hooks before and after the update.

Where a step computes its gradients several times (LBFGS), the first are what is measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
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
LEFT_OUT = "_left_out"
"""Among the numbers of a step: whether a gradient scaler had the optimizer leave it out."""


class StepGauges:
    """One optimizer's. `end_step` publishes what its last step measured, beside what the loop says itself."""

    def __init__(
        self,
        rate: RateReadback,
        gauges: OptimizerGauges,
        publish: Publish,
        *,
        clip: clipping.Clip | None = None,
        heard: bool = True,
        unmeasured: str = "",
    ) -> None:
        """`heard`: whether anybody hears this rank. `unmeasured`: why the gradient's norm is not measured, if so."""
        self._rate, self._gauges, self._publish_on = rate, gauges, publish
        self._clip, self._heard = clip, heard
        self._norm = not unmeasured
        self.unmeasured = {**gauges.unmeasured, **({GRAD_NORM: unmeasured} if unmeasured else {})}
        self._readback = Readback(self._publish, ABSENT_IF_NAN)
        self._numbers: dict[str, torch.Tensor] = {}
        self._steps = 0
        self._optimizer = optimizer = rate.scale.optimizer
        self._hooks = [before_update(optimizer, self._before), optimizer.register_step_post_hook(self._after)]

    def announced(self) -> tuple[MetricSpec, ...]:
        unit = "before clipping" if self._clip else "at the step, after clipping of the loop's own"
        norm = (MetricSpec(name=GRAD_NORM, unit=unit),) if self._norm else ()
        return (*norm, RATE, *self._gauges.announced())

    def end_step(self, tick: int, step: int, known: Mapping[str, float]) -> None:
        """What is `known` goes before what was measured under the same name."""
        rate = {RATE.name: self._rate.used} if self._steps else {}
        self._steps = 0
        wanted = frozenset(self._readback.names) - known.keys()
        self._readback.end_step(tick, step, {**rate, **known}, wanted)

    def settle(self) -> None:
        self._readback.settle()

    def forget(self) -> None:
        """Something else than a step has moved the weights."""
        self._gauges.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before(self, first: bool) -> None:
        optimizer = self._optimizer
        norm = self._tried(lambda: clipping.gradient_norm(optimizer)) if self._norm and self._clip is None else None
        if self._clip is not None:  # asked for by the user: what keeps it from being done is not passed over
            norm = clipping.gradient_norm(optimizer)
            self._clip.apply(optimizer, norm)
        if self._heard and first:
            self._numbers = {} if norm is None else {GRAD_NORM: norm}
            self._numbers |= self._gauges.before_step()
            left_out = getattr(optimizer, "found_inf", None)
            if isinstance(left_out, torch.Tensor):
                self._numbers[LEFT_OUT] = left_out

    def _after(self, *_: Any) -> None:
        self._steps += 1
        if self._heard:
            try:
                self._readback.ask(self._numbers | self._gauges.after_step())
            except Exception as error:
                log.warning("a step's gauges are lost: %s", reason(error))

    def _tried(self, measure: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        try:
            return measure()
        except Exception as error:  # sparse gradients, for one
            self._norm = False
            log.warning("%s is no longer measured: %s", GRAD_NORM, reason(error))
            return None

    def _publish(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """An infinite norm of gradients that were never used is not a sign of anything."""
        found = dict(metrics)
        if found.pop(LEFT_OUT, 0.0):
            found.pop(GRAD_NORM, None)
        self._publish_on(tick, step, found)
