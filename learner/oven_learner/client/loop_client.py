"""The client for a custom training loop, and a stand-in that works without a controller."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from oven_learner.actuators import Actuators
from oven_learner.client.client import EndReason, OvenClient
from oven_learner.client.held_out_evaluation import Evaluation
from oven_learner.link.find_controller import Mode
from oven_learner.link.link_interface import SilentLink
from oven_learner.ranks import Ranks

if TYPE_CHECKING:
    from oven_learner.completions.sampling import Sampling
    from oven_learner.optim.rate_readback import RateReadback
    from oven_learner.optim.step_gauges import StepGauges

log = logging.getLogger("oven.learner")


class LoopClient(OvenClient):
    """The client that `connect` returns.

    Per optimizer step call `observe`, then `poll`. Call `close` at the end, or use a `with` block.
    """

    gauges: StepGauges | None = None
    rate: RateReadback | None = None
    evaluation: Evaluation | None = None
    sampling: Sampling | None = None
    """Settings for showing completions. None turns it off, as on all ranks except rank 0."""
    _steps = 0
    _last_step = 0
    """The loop's latest step."""
    _loop_rolls_back = False
    """Whether the loop's own step count goes back with a rollback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hooks = ExitStack()
        """The hooks in the optimizer, which are removed when the client closes."""

    @property
    def lr_scale(self) -> float:
        """The factor for a loop that sets its learning rate itself, at every step.

        It is 1 if `connect` was given a scheduler, whose rates contain the scale.
        """
        return self.rate.lr_scale if self.rate is not None else 1.0

    def publish_first_evaluation(self, step: int) -> None:
        """Publish the first evaluation, of the weights that the run starts from."""
        self._last_step = step
        if self.evaluation is not None:
            self._observe(step, self.evaluation.last)
            self.evaluated(self.evaluation.last)

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of one optimizer step: floats, in the announced units.

        Metrics of hooks and of `evaluate` are added, unless `metrics` has the same name. Omit missing measurements; do
        not send 0. NaN is sent as NaN. After a rollback `step` may count on, or continue from `client.step`.
        """
        self._loop_rolls_back = self._loop_rolls_back or step <= self._last_step
        counts_alike = self._loop_rolls_back or step == self.step + 1
        step_of_weights = step if counts_alike else self.step + step - self._last_step
        self._last_step = step
        self._steps += 1
        measured = None
        if self.evaluation is not None:
            measured = self.evaluation.measure_if_due(self._steps, is_last=step == self._horizon.max_steps)
        self._observe(step_of_weights, {**(measured or {}), **metrics})
        if measured is not None:
            self.evaluated(measured)

    def poll(self) -> None:
        """Receive decisions and commands, and apply those that are due, like `OvenClient.poll`.

        After the last step, if `max_steps` is known, the model has the weights that the run ends with.
        """
        step_before = self.step
        super().poll()
        spent = self._horizon.max_steps is not None and self._last_step >= self._horizon.max_steps
        if self.stopping or (spent and self.step >= step_before):
            self.finish()  # a loop that was just rolled back may train on

    def progress(self, step: int) -> float:
        """Return the share of the run that is done, 0 to 1. Steps that a rollback threw away count as done."""
        return super().progress(step + max(0, self._last_step - self.step))

    def close(
        self,
        reason: EndReason | None = None,
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Announce the end and send the queue, like `OvenClient.close`."""
        if reason is None:
            reason, why = self.ending(sys.exception())
            detail = detail or why
        if reason != "failed":
            self.finish()
        last = self.evaluation.last if self.evaluation is not None else {}
        sent = super().close(reason, detail=detail, metrics={**last, **(metrics or {})}, timeout_s=timeout_s)
        self.hooks.close()
        return sent

    def weights_restored(self) -> None:
        """Note that a rollback has moved the weights."""
        if self.gauges is not None:
            self.gauges.forget()

    def settle(self) -> None:
        """Publish measurements that are still on their way from the device."""
        if self.gauges is not None:
            self.gauges.settle()

    def _observe(self, step: int, metrics: Mapping[str, float]) -> None:
        averaged = self._ranks.mean(metrics, self._averaged)
        tick = self.advance(step)
        if self.gauges is None:
            self.publish(tick, step, averaged)
            return
        self.gauges.end_step(tick, step, averaged)
        if self._lockstep:
            self.gauges.settle()  # the tick closes when its observation is in the log


class IdleClient(LoopClient):
    """A client without a controller. It publishes nothing, and stops when time runs out or on `request_stop`."""

    def hold(self, reason: str) -> None:
        """Only log a warning: there is no operator to resume the run."""
        log.warning("without a controller nothing is held: %s", reason)


def idle_client(
    mode: Mode,
    actuators: Actuators,
    *,
    step: int = 0,
    max_steps: int | None = None,
    seconds: float | None = None,
    ranks: Ranks | None = None,
) -> LoopClient:
    """Return a started client without a controller, and log once why there is none."""
    client = IdleClient(SilentLink(), actuators, max_steps=max_steps, seconds=seconds, ranks=ranks)
    client.start(step)
    client.publish_first_evaluation(step)
    mode.log_absence()
    return client
