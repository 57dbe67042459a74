"""The knob `optimizer.lr_scale`, with a check just before each step that the step uses the new rate.

A loop or a callback may set `param_group["lr"]` itself and so overwrite the change. A known scheduler reports which
rates it has set. Any other change comes from the loop, so those rates are the user's. Then the scale is 1, unless the
loop reads `lr_scale`, which shows that it multiplies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oven_core.errors import reason
from oven_learner.actuators import Actuators
from oven_learner.optim.lr_scale import LearningRateScale, equal

log = logging.getLogger("oven.learner")

IN_A_ROW = 2
"""Number of steps in a row with the loop's own rates, or of changes that the loop overwrote, after which changes are
refused."""
IN_A_LOOP = (
    "let it multiply: `lr = get_lr(step) * client.lr_scale`, then `for group in optimizer.param_groups: group['lr'] = "
    "lr`; or, if a scheduler sets it, pass that: connect(scheduler=…)"
)
IN_A_TRAINER = "leave the rate to the trainer's scheduler (lr_scheduler_type=, or optimizers=(optimizer, scheduler))"


@dataclass(slots=True)
class _Change:
    before: float
    checks: int
    """Steps that still have to use it."""
    used: bool = False
    verdict: str | None = None


class RateReadback:
    """The knob `optimizer.lr_scale` and its proof (oven_learner.actuators.Proof). Never raises within a step."""

    def __init__(self, scale: LearningRateScale, remedy: str = IN_A_LOOP) -> None:
        self.scale, self._remedy = scale, remedy
        self.used = math.nan
        """The rate of the last step."""
        self._expected = scale.rates()
        self._own: list[float] = []  # the last step's rates, without the scale
        self._loop_read_scale = self._loop_knows_scale = False
        self._foreign = self._undone = 0
        self._change: _Change | None = None
        self._undone_setting: tuple[float, float, str] | None = None
        self._warned = False
        self._hooks: list[Any] = []
        if hasattr(scale.optimizer, "register_step_pre_hook"):
            self._hooks = [
                before_update(scale.optimizer, lambda first: self.before_step() if first else None),
                scale.optimizer.register_step_post_hook(lambda *_: self.on_restore()),
            ]

    def announce(self, actuators: Actuators, bounds: tuple[float, float]) -> None:
        """Register the knob. Raises ConfigError if a checkpoint has restored a scale outside the bounds."""
        actuators.scalar(
            "optimizer.lr_scale",
            self.read,
            self.write,
            low=bounds[0],
            high=bounds[1],
            scale="log",
            unit="× the schedule",
            risky=True,
            proof=self,
        )

    @property
    def lr_scale(self) -> float:
        """The factor for a loop that sets the rate itself. It is 1 with a scheduler, whose rates contain the scale."""
        self._loop_read_scale = self._loop_knows_scale = True
        return 1.0 if self.scale.scheduled else self.scale.read()

    def read(self) -> float:
        return self.scale.read()

    def write(self, scale: float) -> None:
        self.scale.write(scale)
        self.on_restore()

    def on_restore(self) -> None:
        """Take the present rates as the expected ones."""
        self._expected = self.scale.rates()

    def before_step(self) -> None:
        """Check the rates that the optimizer is about to use. A closure may have set them."""
        try:
            self._check(self.scale.rates())
        except Exception as error:  # an optimizer whose groups are not torch's
            if not self._warned:
                log.warning("the learning rate cannot be read back: %s", reason(error))
            self._warned = True

    # The proof.

    @property
    def is_certain(self) -> bool:
        return self.scale.scheduled and not self._foreign and not self._undone

    def refusal(self) -> str:
        unknown_scheduler = self.scale.has_unknown_scheduler and not self._loop_knows_scale
        if max(self._foreign, self._undone) < IN_A_ROW and not unknown_scheduler:
            return ""
        return f"your loop sets the rate itself (the last step used {self.used:g}): {self._remedy}"

    def begin(self, before: Any) -> None:
        """Several changes between two steps count as one: a step can only use the last."""
        change = self._change
        if change is not None and change.verdict is None and not change.used:
            before = change.before
        self._change = _Change(float(before), checks=1 if self.scale.scheduled else 2)

    def verdict(self, *, ended: bool = False) -> str | None:
        if not self._hooks and not ended:  # this optimizer has no hooks
            self.before_step()
        change = self._change
        if change is None:
            return ""
        return "" if ended and change.verdict is None and change.used else change.verdict

    def take_reverted(self) -> tuple[float, float, str] | None:
        undone, self._undone_setting = self._undone_setting, None
        return undone

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _check(self, rates: list[float]) -> None:
        change, expected = self._change, self._expected
        open_change = change if change is not None and change.verdict is None else None
        is_ours = equal(expected, rates) or self.scale.as_scheduled(rates) or self._multiplied(rates, open_change)
        if is_ours:
            self._foreign = 0
            if open_change is not None and (rates[0] or self.scale.scheduled):  # 0 is 0 times anything
                open_change.used, open_change.checks = True, open_change.checks - 1
                open_change.verdict = None if open_change.checks else ""
        else:
            self._foreign += 1
            self._give_way(expected, rates, open_change)
            rates = self.scale.rates()
        self._expected, self._loop_read_scale = rates, False
        self.used, self._own = rates[0], [rate / self.scale.read() for rate in rates]

    def _multiplied(self, rates: list[float], change: _Change | None) -> bool:
        """Whether the loop has set the rates itself, and multiplied each by the scale.

        After a change a rate must be nearer to its old value times the new scale than to its old value.
        """
        if not self._loop_read_scale or self.scale.scheduled:
            return False
        if change is None:
            return True
        scale = self.scale.read()
        return all(
            abs(math.log(rate / (own * scale))) <= abs(math.log(rate / (own * change.before)))
            for rate, own in zip(rates, self._own, strict=False)
            if rate > 0 and own > 0
        )

    def _give_way(self, expected: list[float], rates: list[float], change: _Change | None) -> None:
        """Treat the rates as the loop's own, with a scale of 1. Groups that the loop did not set get their own rate."""
        before = self.scale.read() if change is None else change.before
        pairs = zip(expected, rates, strict=False)
        wanted, used = next((pair for pair in pairs if not equal(*([rate] for rate in pair))), (expected[0], rates[0]))
        was = f"{wanted:g} was written, and the step used {used:g}"
        if change is None:
            was = f"it was {wanted:g}, and the step used {used:g}"
        why = f"your loop sets the rate itself: {was}; {self._remedy}"
        if change is not None:
            change.verdict = why
        if self.scale.read() != 1:
            self.scale.yield_to_loop(expected)
        if before != 1:
            self._undone_setting = (before, 1.0, why)
        if change is not None or before != 1:
            self._undone += 1
            if not self._warned:
                log.warning("optimizer.lr_scale: %s", why)
            self._warned = True


def before_update(optimizer: Any, callback: Callable[[bool], object]) -> Any:
    """Call `callback` when the gradients of a step are there, before the update; with False if the same step has
    computed gradients before (LBFGS). Return the handle that removes the hook.

    A loop may compute gradients before `optimizer.step`, or in its closure, as Lightning does.
    """

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """The first of `args` is the optimizer."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            callback(True)
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": _with_callback(closure, callback)}
        return (args[0], _with_callback(closure, callback), *args[2:]), kwargs

    return optimizer.register_step_pre_hook(hook)


def _with_callback(closure: Callable[[], Any], callback: Callable[[bool], object]) -> Callable[[], Any]:
    first = True

    def wrapped() -> Any:
        nonlocal first
        result = closure()
        callback(first)
        first = False
        return result

    return wrapped
