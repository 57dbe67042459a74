"""The arms of a trial against its control, example by example: gains, standard errors, and the arm that is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oven_core.protocol.trial_messages import ArmReading

LEAST_EXAMPLES = 8
"""Below that a standard error says too little: nothing but the control can be kept."""


def reading(examples: Sequence[float], control: Sequence[float], sign: int) -> ArmReading:
    """What one arm's `examples` say beside the control's. `sign`: +1 where up is better. An example that is not finite
    in one of the two makes the arm's gain not finite, in that arm's disfavour; none is left out, or the mean would be
    of other examples. Where both arms have such an example nothing is measured."""
    mean, error = _mean(examples)
    if len(examples) != len(control):
        why = f"it was read on {len(examples)} examples, and the control on {len(control)}"
        return ArmReading(mean=mean, error=error, examples=len(examples), reason=why)
    gain, noise = _mean([sign * (one - other) for one, other in zip(examples, control, strict=True)])
    broken, whole = not math.isfinite(mean), all(map(math.isfinite, control))
    if broken and not whole:
        why = "neither it nor the control has a finite reading of every example"
        return ArmReading(mean=mean, error=error, examples=len(examples), reason=why)
    if broken or not whole:
        gain, noise = -math.inf if broken else math.inf, 0.0
    return ArmReading(mean=mean, error=error, examples=len(examples), gain=gain, noise=noise)


def best(arms: Sequence[ArmReading], margin: float) -> int:
    """The index of the arm to keep: of those that beat the control, the first of `arms`, by more than `margin` standard
    errors, the one with the largest gain; 0 where none does."""
    beat = [
        (arm.gain, -index)
        for index, arm in enumerate(arms)
        if index and arm.gain is not None and not arm.reason and arm.examples >= LEAST_EXAMPLES
        if arm.gain > 0 and arm.gain > margin * (arm.noise or 0.0)
    ]
    return -max(beat)[1] if beat else 0


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """With its standard error; NaN where a value is not finite or there is none."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))
