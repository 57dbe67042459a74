"""The client for a custom training loop, with and without a controller."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from oven_learner.actuators import Actuators
from oven_learner.client.accumulation import Accumulation
from oven_learner.client.held_out_evaluation import Evaluation
from oven_learner.client.oven_client import EndReason, OvenClient
from oven_learner.link.find_controller import Mode
from oven_learner.link.link_interface import SilentLink
from oven_learner.ranks import Ranks

if TYPE_CHECKING:
    from oven_learner.completions.sampling import Sampling
    from oven_learner.optim.rate_knobs import RateKnobs
    from oven_learner.optim.step_gauges import StepGauges

log = logging.getLogger("oven.learner")


class LoopClient(OvenClient):
    """The client that `connect` returns. Call `observe` and then `poll` at each optimizer step. Call `close` at the
    end, or use a `with` block."""

    gauges: StepGauges | None = None
    """Measurements of the optimizer's steps, such as the gradient norm. None if they are not published."""
    rates: RateKnobs | None = None
    """The learning rate's knobs. None if the client was not given an optimizer."""
    evaluation: Evaluation | None = None
    micro_batches: Accumulation | None = None
    """The knob `data.accumulation`. None if `connect` was not given a number."""
    sampling: Sampling | None = None
    """Settings for showing completions. None if they are not shown, and on all ranks except rank 0."""
    _step_count = 0
    """Number of `observe` calls."""
    _last_step = 0
    """The last step that the loop has reported."""
    _loop_rolls_back = False
    """Whether the loop decreases its own step count after a rollback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hooks = ExitStack()
        """The optimizer's hooks, which are removed when the client closes."""

    @property
    def lr_scale(self) -> float:
        """The factor by which a loop must multiply its learning rate at every step. It is 1 with a scheduler, because
        the scheduler's rates already contain the factor."""
        return self.rates.lr_scale if self.rates is not None else 1.0

    @property
    def accumulation(self) -> int:
        """The number of micro-batches in the next optimizer step. Read it once per step."""
        return self.micro_batches.take() if self.micro_batches is not None else 1

    def publish_first_evaluation(self, step: int) -> None:
        """Publish the first evaluation, which measures the initial weights."""
        self._last_step = step
        if self.evaluation is not None:
            self._observe(step, self.evaluation.last)
            self.record_evaluation(self.evaluation.last)

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of one optimizer step as floats in the announced units. Omit missing measurements instead
        of sending 0. NaN is sent as NaN. Metrics from hooks and `evaluate` are added unless `metrics` contains the same
        name. After a rollback, `step` may keep increasing or continue from `client.step`."""
        self._loop_rolls_back = self._loop_rolls_back or step <= self._last_step
        # If a loop keeps increasing its count after a rollback, the count is greater than the step of the weights.
        counts_differ = not self._loop_rolls_back and step != self.step + 1
        step_of_weights = self.step + (step - self._last_step) if counts_differ else step
        self._last_step, self._messages.discarded_steps = step, max(0, step - step_of_weights)
        self._step_count += 1
        results = None
        if self.evaluation is not None:
            results = self.evaluation.measure_if_due(self._step_count, is_last=step == self._messages.max_steps)
        self._observe(step_of_weights, {**results, **metrics} if results is not None else metrics)
        if results is not None:
            self.record_evaluation(results)

    def poll(self) -> None:
        """Receive decisions and commands, and apply those that are due, like `OvenClient.poll`. Call `finish` if the
        run stops or this was its last step, which is known only with `max_steps`."""
        step_before = self.step
        super().poll()
        max_steps = self._messages.max_steps
        is_last_step = max_steps is not None and self._last_step >= max_steps
        was_rolled_back = self.step < step_before  # then the loop may continue
        if self.stopping or (is_last_step and not was_rolled_back):
            self.finish()

    def close(
        self,
        reason: EndReason | None = None,
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Announce the end and send all queued messages, like `OvenClient.close`."""
        if reason is None:
            reason, default_detail = self.end_reason(sys.exception())
            detail = detail or default_detail
        if reason != "failed":
            self.finish()
        last_results = self.evaluation.last if self.evaluation is not None else {}
        metrics = {**last_results, **(metrics or {})}
        all_sent = super().close(reason, detail=detail, metrics=metrics, timeout_s=timeout_s)
        self.hooks.close()
        return all_sent

    def on_weights_restored(self) -> None:
        """Reset the gauges after the weights have been restored."""
        if self.gauges is not None:
            self.gauges.forget()

    def settle(self) -> None:
        """Publish measurements that are still in transit from the device."""
        if self.gauges is not None:
            self.gauges.settle()

    def _observe(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.gauges is None:
            super().observe(step, metrics)
            return
        averaged = self._ranks.mean(metrics, self._averaged_metrics)
        self.gauges.end_step(self.advance(step), step, averaged)
        if self._lockstep:
            self.gauges.settle()  # because the tick closes only when its observation is in the log


class IdleClient(LoopClient):
    """A client without a controller. It publishes nothing, and stops when time runs out or on `request_stop`."""

    def hold(self, reason: str) -> None:
        """Only log a warning, because there is no operator to resume the run."""
        log.warning("the run is not held, because there is no controller to resume it: %s", reason)


def idle_client(
    mode: Mode,
    actuators: Actuators,
    *,
    step: int = 0,
    max_steps: int | None = None,
    seconds: float | None = None,
    ranks: Ranks | None = None,
) -> LoopClient:
    """Return a started client without a controller, and log once why there is no controller."""
    client = IdleClient(SilentLink(), actuators, max_steps=max_steps, seconds=seconds, ranks=ranks)
    client.start(step)
    client.publish_first_evaluation(step)
    mode.log_absence()
    return client
