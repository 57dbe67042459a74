"""The knob `optimizer.lr_scale`, with a check just before each step that the step uses the new rate. A loop or a
callback may set `param_group["lr"]` itself and overwrite the change. A known scheduler reports the rates that it has
set. Any other rate was set by the user's loop. The scale is then 1, unless the loop reads `lr_scale`, which shows that
the loop multiplies its rates by it. Once steps have used a change, a loop without a scheduler keeps its own rates
between steps, and each step scales them. Whatever the loop does to its rate later, the scale stays."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oven_core.errors import reason
from oven_learner.actuators import USED, Actuators, Verdict
from oven_learner.optim.lr_scale import LearningRateScale, rates_equal

log = logging.getLogger("oven.learner")

MAX_CONFLICTS = 2
"""Number of consecutive steps with the loop's own rates, or of overwritten changes, after which changes are refused."""
LOOP_REMEDY = (
    "multiply the rate by the scale: `lr = get_lr(step) * client.lr_scale`, then `for group in "
    "optimizer.param_groups: group['lr'] = lr`; or, if a scheduler sets the rate, pass connect(scheduler=…)"
)
TRAINER_REMEDY = "leave the rate to the trainer's scheduler (lr_scheduler_type=, or optimizers=(optimizer, scheduler))"


@dataclass(slots=True)
class _Change:
    """A change of the scale whose use is being checked."""

    before: float
    checks: int
    """Steps that still have to use the new rate."""
    is_used: bool = False
    verdict: Verdict = None


class RateReadback:
    """The knob `optimizer.lr_scale` and its proof (oven_learner.actuators.Proof). It never raises during a step."""

    def __init__(self, scale: LearningRateScale, remedy: str = LOOP_REMEDY) -> None:
        self.scale, self._remedy = scale, remedy
        self.used_rate = math.nan
        """Learning rate of the last step."""
        self._expected = scale.rates()
        self._unscaled_rates: list[float] = []  # the last step's rates, without the scale
        self._loop_read_scale = self._loop_knows_scale = False  # since the last step, and ever
        self._foreign_steps = self._undone_count = 0
        self._change: _Change | None = None
        self._undone_change: tuple[float, float, str] | None = None
        self._has_warned = False
        self._hooks: list[Any] = []
        self._has_end_hook = self._is_settled = False
        if hasattr(scale.optimizer, "register_step_pre_hook"):
            self._hooks = [
                scale.optimizer.register_step_pre_hook(lambda *_: self._safely(self._begin_step)),
                before_update(scale.optimizer, lambda is_first: self.before_step() if is_first else None),
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
        """Factor for a loop that sets the rate itself. It is 1 if a scheduler's rates contain the scale, or if each
        step scales the loop's own rates."""
        self._loop_read_scale = self._loop_knows_scale = True
        return 1.0 if self.scale.has_scheduler or self.scale.keeps_own_rates else self.scale.read()

    def read(self) -> float:
        return self.scale.read()

    def write(self, scale: float) -> None:
        """Set the scale, and expect the next step to use it."""
        self.scale.write(scale)
        self.on_restore()

    def on_restore(self) -> None:
        """Expect the next step to use the current rates."""
        self._expected = self.scale.rates()

    def before_step(self) -> None:
        """Check the rates that the optimizer is about to use. A closure may have set them."""
        self._safely(lambda: self._check(self.scale.rates()))

    # The methods below implement `Proof`.

    @property
    def is_certain(self) -> bool:
        return self.scale.has_scheduler and not self._foreign_steps and not self._undone_count

    def refusal(self) -> str:
        unknown_scheduler = self.scale.has_unknown_scheduler and not self._loop_knows_scale
        if max(self._foreign_steps, self._undone_count) < MAX_CONFLICTS and not unknown_scheduler:
            return ""
        return f"your loop sets the rate itself (the last step used {self.used_rate:g}): {self._remedy}"

    def begin(self, before: Any) -> None:
        """Start to check a change. Several changes between two steps count as one, because only the last is used."""
        change = self._change
        if change is not None and change.verdict is None and not change.is_used:
            before = change.before
        self._change = _Change(float(before), checks=1 if self.scale.has_scheduler else 2)

    def verdict(self, *, is_final: bool = False) -> Verdict:
        if not self._hooks and not is_final:  # the optimizer does not support hooks
            self.before_step()
        change = self._change
        if change is None or (is_final and change.verdict is None and change.is_used):
            return USED
        return change.verdict

    def take_undone_change(self) -> tuple[float, float, str] | None:
        undone_change, self._undone_change = self._undone_change, None
        return undone_change

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._safely(self.scale.release_own_rates)

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # for example, an optimizer with other groups than torch's
            if not self._has_warned:
                log.warning("the learning rate cannot be read back: %s", reason(error))
            self._has_warned = True

    def _begin_step(self) -> None:
        """Scale the rates that the loop has kept or set since the last step."""
        if self.scale.keeps_own_rates:
            self.scale.begin_step()
            self._expected = self.scale.rates()

    def _end_step(self) -> None:
        self.scale.end_step()
        if self._is_settled:
            self.scale.keep_own_rates()
        self.on_restore()

    def _check(self, rates: list[float]) -> None:
        change, expected = self._change, self._expected
        open_change = change if change is not None and change.verdict is None else None
        is_expected = rates_equal(expected, rates) or self.scale.matches_schedule(rates)
        if is_expected or self._is_multiplied(rates, open_change):
            self._foreign_steps = 0
            if open_change is not None and (rates[0] or self.scale.has_scheduler):  # a rate of 0 proves nothing
                open_change.is_used = True
                open_change.checks -= 1
                open_change.verdict = None if open_change.checks else USED
        else:
            self._foreign_steps += 1
            self._yield_to_loop(expected, rates, open_change)
            rates = self.scale.rates()
        # Whether the last step used the scale in a loop that seldom sets its rate.
        self._is_settled = (
            not self._foreign_steps
            and (change is None or change.verdict == USED)
            and self.scale.read() != 1
            and not (self.scale.has_scheduler or self.scale.has_unknown_scheduler or self._loop_knows_scale)
        )
        if self._hooks and not self._has_end_hook and (self._is_settled or self.scale.keeps_own_rates):
            # It is registered now so that it runs last. Gauges read the scaled rates after the step.
            end_hook = self.scale.optimizer.register_step_post_hook(lambda *_: self._safely(self._end_step))
            self._hooks.append(end_hook)
            self._has_end_hook = True
        self._expected, self._loop_read_scale = rates, False
        self.used_rate, self._unscaled_rates = rates[0], [rate / self.scale.read() for rate in rates]

    def _is_multiplied(self, rates: list[float], change: _Change | None) -> bool:
        """Whether the loop has set the rates itself and multiplied them by the scale. After a change, each rate must be
        closer to the previous unscaled rate times the new scale than times the old scale."""
        if not self._loop_read_scale or self.scale.has_scheduler:
            return False
        if change is None:
            return True
        scale = self.scale.read()
        return all(
            abs(math.log(rate / (unscaled * scale))) <= abs(math.log(rate / (unscaled * change.before)))
            for rate, unscaled in zip(rates, self._unscaled_rates, strict=False)
            if rate > 0 and unscaled > 0
        )

    def _yield_to_loop(self, expected: list[float], rates: list[float], change: _Change | None) -> None:
        """Treat the rates as set by the loop, with a scale of 1. Groups that the loop did not set get their unscaled
        rate."""
        before = self.scale.read() if change is None else change.before
        different_rates = [pair for pair in zip(expected, rates, strict=False) if not rates_equal([pair[0]], [pair[1]])]
        expected_rate, used_rate = different_rates[0] if different_rates else (expected[0], rates[0])
        verb = "it was" if change is None else "the run set"
        explanation = (
            f"your loop sets the rate itself: {verb} {expected_rate:g}, and the step used {used_rate:g}; {self._remedy}"
        )
        if change is not None:
            change.verdict = explanation
        if self.scale.read() != 1:
            self.scale.yield_to_loop(expected)
        if before != 1:
            self._undone_change = (before, 1.0, explanation)
        if change is not None or before != 1:
            self._undone_count += 1
            if not self._has_warned:
                log.warning("optimizer.lr_scale: %s", explanation)
            self._has_warned = True


def before_update(optimizer: Any, callback: Callable[[bool], object]) -> Any:
    """Register `callback`, to be called before each update, once its gradients are computed. Its argument is False if
    the same step has already computed gradients (LBFGS), otherwise True. Returns the handle that removes the hook. A
    loop may compute gradients before `optimizer.step`, or in a closure, as Lightning does."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is None:
            callback(True)
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": _with_callback(closure, callback)}
        return (args[0], _with_callback(closure, callback), *args[2:]), kwargs

    return optimizer.register_step_pre_hook(hook)


def _with_callback(closure: Callable[[], Any], callback: Callable[[bool], object]) -> Callable[[], Any]:
    """Return the closure with a call of `callback` after it."""
    is_first = True

    def wrapped() -> Any:
        nonlocal is_first
        result = closure()
        callback(is_first)
        is_first = False
        return result

    return wrapped
