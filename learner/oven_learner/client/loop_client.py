"""The client of one's own loop: it adds what `connect` was given to what the loop says itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.client.held_out_evaluation import Evaluation
from oven_learner.link.find_controller import Mode
from oven_learner.ranks import Ranks, SilentLink

if TYPE_CHECKING:
    from oven_learner.completions.sampling import Sampling
    from oven_learner.optim.rate_readback import RateReadback
    from oven_learner.optim.step_gauges import StepGauges

log = logging.getLogger("oven.learner")


class LoopClient(OvenClient):
    """`connect` makes it. Per optimizer step: `observe`, then `poll`; `close` at the end, or a `with` block."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.hooks = ExitStack()
        """What was put into the optimizer; closed when the client is."""

    gauges: StepGauges | None = None
    rate: RateReadback | None = None
    evaluation: Evaluation | None = None
    sampling: Sampling | None = None
    """How completions are shown; None: they are not, as on other ranks than the first."""
    _counted = 0
    """The step that the loop gave last."""
    _follows = False
    """Whether the loop itself goes back with a rollback."""

    @property
    def lr_scale(self) -> float:
        """What a loop that sets its learning rate itself multiplies it by, at every step; 1 where a scheduler was given
        to `connect`, whose rates contain the scale."""
        return self.rate.lr_scale if self.rate is not None else 1.0

    def began(self, step: int) -> None:
        """The first measurement, of the weights that the run starts from."""
        self._counted = step
        if self.evaluation is not None:
            self._observed(step, self.evaluation.last)
            self.evaluated(self.evaluation.last)

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish one optimizer step's metrics: floats, in the units that were announced; what hooks and `evaluate`
        measured is added, and gives way to a metric of the same name. What was not measured is left out, not 0; NaN is
        sent as NaN. After a rollback `step` may count on, or continue from `client.step`."""
        self._follows = self._follows or step <= self._counted
        reached = step if self._follows or step == self.step + 1 else self.step + step - self._counted
        self._counted = step
        before = self.evaluation.count if self.evaluation is not None else 0
        measured = self.evaluation.due(step) if self.evaluation is not None else {}
        self._observed(reached, {**measured, **metrics})
        if self.evaluation is not None and self.evaluation.count > before:
            self.evaluated(measured)

    def poll(self) -> None:
        """As `OvenClient.poll`. After the last step, where that is known, the weights are those that the run ends
        with."""
        before = self.step
        super().poll()
        spent = self._horizon.max_steps is not None and self._counted >= self._horizon.max_steps
        if self.stopping or (spent and self.step >= before):
            self.finish()  # a loop that was just rolled back may train on

    def progress(self, step: int) -> float:
        """0 to 1, by the loop's own count: steps that a rollback threw away are spent."""
        return super().progress(step + max(0, self._counted - self.step))

    def close(
        self,
        reason: Literal["completed", "stopped", "failed"],
        *,
        detail: str = "",
        metrics: Mapping[str, float] | None = None,
        timeout_s: float = 5.0,
    ) -> bool:
        """Announce the end and send what is left. False when something stayed unsent. A second call does nothing."""
        if reason != "failed":
            self.finish()
        last = self.evaluation.last if self.evaluation is not None else {}
        sent = super().close(reason, detail=detail, metrics={**last, **(metrics or {})}, timeout_s=timeout_s)
        self.hooks.close()
        return sent

    def put_back(self) -> None:
        """A rollback has moved the weights."""
        if self.gauges is not None:
            self.gauges.forget()

    def settle(self) -> None:
        """Publish what is still on its way from the device."""
        if self.gauges is not None:
            self.gauges.settle()

    def _observed(self, step: int, metrics: Mapping[str, float]) -> None:
        known = self._ranks.mean(metrics, self._averaged)
        tick = self.advance(step)
        if self.gauges is None:
            self.publish(tick, step, known)
            return
        self.gauges.end_step(tick, step, known)
        if self._lockstep:
            self.gauges.settle()  # the tick closes when its observation is in the log


class IdleClient(LoopClient):
    """`observe` says nothing to anybody; `poll` hears of a spent time budget and of `request_stop`, on all ranks."""

    def hold(self, reason: str) -> None:
        """No one could say that it continues."""
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
    """Says so, once."""
    client = IdleClient(SilentLink(), actuators, max_steps=max_steps, seconds=seconds, ranks=ranks)
    client.start(step)
    client.began(step)
    mode.say_why_not()
    return client
