"""Reads the rates of an optimizer back before each step, because the user's loop may have overwritten them.

If it has, the scale becomes 1, unless the new rates still contain the scale. This is the case if the loop multiplies
its own rates by `client.lr_scale`, or if it multiplies the current rates (`group["lr"] *= 0.1`, or ReduceLROnPlateau).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oven_core.errors import reason
from oven_learner.actuators import USED, Usage
from oven_learner.optim.lr_scale import ALL_GROUPS, LearningRateScale, rates_equal

log = logging.getLogger("oven.learner")

SCALE = "optimizer.lr_scale"
WARMUP_COMPLETE = "the warm-up is complete"
MAX_CONFLICTS = 2
"""Number of overwritten changes, or of consecutive steps with the loop's own rates, after which changes are refused."""
LOOP_REMEDY = (
    "multiply the rate by the scale: `lr = get_lr(step) * client.lr_scale`, then `for group in "
    "optimizer.param_groups: group['lr'] = lr`; or, if a scheduler sets the rate, pass connect(scheduler=…)"
)
NAMED_REMEDY = "leave the rates to a scheduler and pass connect(scheduler=…)"
TRAINER_REMEDY = "leave the rate to the trainer's scheduler (lr_scheduler_type=, or optimizers=(optimizer, scheduler))"

DECAY_THRESHOLD = 0.8
"""If no change is open, a new rate below this share of the unscaled rate counts as a multiple of the scaled rate."""


@dataclass(slots=True)
class _Change:
    """A change of the scale, with the result of checking whether training uses it."""

    before: float
    checks_left: int
    """Number of steps that still have to use the new rate."""
    is_used: bool = False
    """Whether at least one step has used the new rate."""
    usage: Usage = None
    """The result, once no more steps have to be checked."""


class RateReadback:
    """The rates of one optimizer, with the methods of oven_learner.actuators.Proof for its scales. It never raises
    during a step."""

    def __init__(self, scale: LearningRateScale, remedy: str = LOOP_REMEDY) -> None:
        self.scale, self._remedy = scale, remedy
        self.used_rate = math.nan
        """Learning rate of the last step."""
        self._expected = scale.rates()
        self._unscaled_rates: list[float] = []  # the last step's rates, without the scale
        self._loop_read_scale = False  # whether the loop has read the scale since the last step
        self._loop_knows_scale = False  # whether the loop has ever read the scale
        self._steps_with_other_rates = self._overwritten_changes = 0
        self._changes: dict[str, _Change] = {}
        """The last change of each scale, by the name of its parameter groups."""
        self._undone_changes: dict[str, tuple[float, float, str]] = {}
        """The results of `take_undone_change`, by the name of the parameter groups."""
        self.warmup_usage: Usage = USED
        """Whether a step has used the last change of the warm-up."""
        self._ended_warmup: tuple[float, float, str] | None = None
        self._has_warned = False
        self._multiplied_last_step = False
        """Whether the loop multiplied a scaled rate just before the last step."""
        self._hooks: list[Any] = []
        if hasattr(scale.optimizer, "register_step_pre_hook"):
            self._hooks = [
                before_update(scale.optimizer, lambda is_first: self.before_step() if is_first else None),
                scale.optimizer.register_step_post_hook(lambda *_: self._after_step()),
            ]

    @property
    def lr_scale(self) -> float:
        """The factor for a loop that sets the rate itself. It is 1 with a scheduler, whose rates contain the factor."""
        self._loop_read_scale = self._loop_knows_scale = True
        return 1.0 if self.scale.has_scheduler else self.scale.common_factor

    def write(self, scale: float, name: str = ALL_GROUPS) -> None:
        """Set the scale of the groups with this name, and expect the next step to use it."""
        self.scale.write(scale, name)
        self._expect_current_rates()

    def start_warmup(self, steps: int) -> None:
        """Start a warm-up of the rates, and expect the next step to use it. With 0, end the current one."""
        self.scale.start_warmup(steps)
        self._expect_current_rates()

    @property
    def has_hooks(self) -> bool:
        """Whether the optimizer reports its steps."""
        return bool(self._hooks)

    def _after_step(self) -> None:
        if steps := self.scale.warmup_steps:
            self.scale.advance_warmup()
            if not self.scale.warmup_steps:
                self._ended_warmup = (float(steps), 0.0, WARMUP_COMPLETE)
        self._expect_current_rates()

    def _expect_current_rates(self) -> None:
        """Expect the next step to use the current rates."""
        self._expected = self.scale.rates()

    def before_step(self) -> None:
        """Check the rates that the optimizer is about to use."""
        try:
            self._check(self.scale.rates())
        except Exception as error:  # for example, an optimizer with other groups than torch's
            if not self._has_warned:
                log.warning("the learning rate cannot be read back: %s", reason(error))
            self._has_warned = True

    # The methods below implement `Proof`.

    @property
    def is_certain(self) -> bool:
        return self.scale.has_scheduler and not self._steps_with_other_rates and not self._overwritten_changes

    def refusal(self, name: str = ALL_GROUPS) -> str:
        has_unknown_scheduler = self.scale.has_unknown_scheduler and not self._loop_knows_scale
        overwrites_named_rates = bool(name) and self._loop_knows_scale and not self.scale.has_scheduler
        has_conflict = max(self._steps_with_other_rates, self._overwritten_changes) >= MAX_CONFLICTS
        if not (has_conflict or has_unknown_scheduler or overwrites_named_rates):
            return ""
        remedy = NAMED_REMEDY if overwrites_named_rates else self._remedy
        return f"your loop sets the rate itself (the last step used {self.used_rate:g}): {remedy}"

    def begin(self, before: Any, name: str = ALL_GROUPS) -> None:
        """Start to check a change. If the last change has not been used yet, both count as one change."""
        change = self._changes.get(name)
        if change is not None and change.usage is None and not change.is_used:
            before = change.before
        self._changes[name] = _Change(float(before), checks_left=1 if self.scale.has_scheduler else 2)

    def usage(self, *, is_final: bool = False, name: str = ALL_GROUPS) -> Usage:
        if not self._hooks and not is_final:  # the optimizer does not support hooks
            self.before_step()
        change = self._changes.get(name)
        if change is None or (is_final and change.usage is None and change.is_used):
            return USED
        return change.usage

    def take_undone_change(self, name: str = ALL_GROUPS) -> tuple[float, float, str] | None:
        return self._undone_changes.pop(name, None)

    def take_ended_warmup(self) -> tuple[float, float, str] | None:
        """Return (length, 0, reason) if a warm-up has ended since the last call."""
        ended, self._ended_warmup = self._ended_warmup, None
        return ended

    def on_restore(self) -> None:
        self._expect_current_rates()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _check(self, rates: list[float]) -> None:
        """Compare the rates with the expected ones. If the loop has overwritten scaled rates, set the scales to 1."""
        expected = self._expected
        open_changes = {name: change for name, change in self._changes.items() if change.usage is None}
        is_expected = rates_equal(expected, rates) or self.scale.matches_schedule(rates)
        has_applied_scale = not is_expected and self._loop_applied_scale(rates, open_changes.get(ALL_GROUPS))
        has_multiplied = not (is_expected or has_applied_scale) and self._loop_multiplied(expected, rates, open_changes)
        if has_multiplied and not open_changes and not self._multiplied_last_step:
            self._report_multiplied_rates(expected, rates)
        self._multiplied_last_step = has_multiplied
        if is_expected or has_applied_scale or has_multiplied:
            self._steps_with_other_rates = 0
            self._record_use(rates, open_changes)
        else:
            self._steps_with_other_rates += 1
            self._yield_to_loop(expected, rates, open_changes)
            rates = self.scale.rates()
        self._expected, self._loop_read_scale = rates, False
        common_factor = self.scale.common_factor
        self.used_rate, self._unscaled_rates = rates[0], [rate / common_factor for rate in rates]

    def _record_use(self, rates: list[float], open_changes: dict[str, _Change]) -> None:
        """Record that a step used the changes. A rate of 0 proves nothing, unless a scheduler has set it."""
        for name, change in open_changes.items():
            if rates[self.scale.indices(name)[0]] or self.scale.has_scheduler:
                change.is_used = True
                change.checks_left -= 1
                change.usage = None if change.checks_left else USED
        if self.warmup_usage is None and (any(rates) or self.scale.has_scheduler):
            self.warmup_usage = USED

    def _loop_applied_scale(self, rates: list[float], change: _Change | None) -> bool:
        """Whether the loop has set the rates itself and multiplied them by the scale. After a change, each rate must be
        closer to the last unscaled rate times the new scale than to the last unscaled rate times the old scale."""
        if not self._loop_read_scale or self.scale.has_scheduler or self._named_scales():
            return False
        if change is None:
            return True
        scale = self.scale.common_factor
        scale_before = scale * change.before / self.scale.read()
        return all(
            abs(math.log(rate / (unscaled * scale))) <= abs(math.log(rate / (unscaled * scale_before)))
            for rate, unscaled in zip(rates, self._unscaled_rates, strict=False)
            if rate > 0 and unscaled > 0
        )

    def _loop_multiplied(self, expected: list[float], rates: list[float], open_changes: dict[str, _Change]) -> bool:
        """Whether the loop has multiplied scaled rates, so that all its new rates still contain the scale."""
        scales = self.scale.group_scales()
        if all(scale == 1 for scale in scales):  # if a change has just set the scale to 1, use the scale before it
            scales = [max((change.before for change in open_changes.values()), default=1.0)] * len(scales)
        if self.scale.has_scheduler or all(scale == 1 for scale in scales):
            return False
        return all(
            _contains_scale(rate, scaled, scale, is_between_changes=not open_changes)
            for scaled, rate, scale in zip(expected, rates, scales, strict=False)
            if not rates_equal([scaled], [rate])
        )

    def _report_multiplied_rates(self, expected: list[float], rates: list[float]) -> None:
        """Report that the scales are unchanged although the loop has changed rates."""
        changed = _changed_rates(expected, rates)
        first_expected, first_rate = changed[0]
        explanation = (
            f"your loop changed the rate of {len(changed)} of {len(rates)} parameter groups, the first from "
            f"{first_expected:g} to {first_rate:g}, and the scale is still part of it"
        )
        scales = self._changed_scales(ALL_GROUPS, *self.scale.named_groups)
        self._undone_changes |= {name: (scale, scale, explanation) for name, scale in scales.items()}

    def _named_scales(self) -> dict[str, float]:
        """Return the scale of each name whose scale is not 1."""
        return self._changed_scales(*self.scale.named_groups)

    def _changed_scales(self, *names: str) -> dict[str, float]:
        """Return those of these scales that are not 1."""
        scales = {name: self.scale.read(name) for name in names}
        return {name: scale for name, scale in scales.items() if not rates_equal([scale], [1.0])}

    def _yield_to_loop(self, expected: list[float], rates: list[float], open_changes: dict[str, _Change]) -> None:
        """Set all scales to 1 and end the warm-up, because the loop sets the rates. Groups that it has not set get
        their unscaled rate."""
        scales = self._changed_scales(ALL_GROUPS, *self.scale.named_groups)
        scales_before = scales | {name: change.before for name, change in open_changes.items()}
        changed = _changed_rates(expected, rates)
        expected_rate, used_rate = changed[0] if changed else (expected[0], rates[0])
        has_open_change = bool(open_changes) or self.warmup_usage is None
        expectation = f"the run set {expected_rate:g}" if has_open_change else f"it was {expected_rate:g}"
        explanation = f"your loop sets the rate itself: {expectation}, and the step used {used_rate:g}; {self._remedy}"
        for change in open_changes.values():
            change.usage = explanation
        warmup_steps, is_used = self.scale.warmup_steps, self.warmup_usage == USED
        if self.warmup_usage is None:
            self.warmup_usage = explanation
        if warmup_steps and is_used:
            self._ended_warmup = (float(warmup_steps), 0.0, explanation)
        if scales or warmup_steps:
            self.scale.yield_to_loop(expected)
        for name, before in scales_before.items():
            if before != 1:
                self._undone_changes[name] = (before, 1.0, explanation)
        if scales_before or warmup_steps:
            self._overwritten_changes += 1
            if not self._has_warned:
                log.warning("%s: %s", SCALE, explanation)
            self._has_warned = True


def _changed_rates(expected: list[float], rates: list[float]) -> list[tuple[float, float]]:
    """Return (expected rate, rate) for each rate that is not the expected one."""
    pairs = zip(expected, rates, strict=False)
    return [(expected_rate, rate) for expected_rate, rate in pairs if not rates_equal([expected_rate], [rate])]


def _contains_scale(rate: float, scaled: float, scale: float, *, is_between_changes: bool) -> bool:
    """Whether a new rate is probably a multiple of the rate `scaled`, not of the unscaled rate. On a logarithmic scale,
    its distance from `scaled` must be less than half its distance from the unscaled rate. If no change is open, it may
    instead be far below the unscaled rate."""
    if min(scaled, rate) <= 0:
        return False
    is_close = 2 * abs(math.log(rate / scaled)) < abs(math.log(rate / scaled * scale))
    return is_close or (is_between_changes and rate < DECAY_THRESHOLD * scaled / scale)


def before_update(optimizer: Any, callback: Callable[[bool], object]) -> Any:
    """Register a callback for the time after the gradients are computed and before the weights are updated. A loop may
    compute gradients before `optimizer.step`, or in a closure, as Lightning does. LBFGS computes them several times per
    step. The callback's argument is True the first time in a step. Return the handle that removes the hook."""

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
