"""What the tuner's model may answer: nothing, or one change that lies within a knob's bounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_llm.judges.sanitize import visible
from oven_llm.language_models.tuner_question import REASON
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.json_object import json_object

LONGEST: Final = 1000
"""Ticks until a change must show: a forecast beyond that is judged by no run."""


class Advice(BaseModel):
    """The model's answer. Fields beyond the decision count only where it proposes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    decision: Literal["nothing", "propose"]
    actuator: str = ""
    value: float = 0.0
    target: str = ""
    expected_change: float = 0.0
    horizon: int = 0
    confidence: float = 0.0
    reason: str = ""


def read(text: str, bounds: Mapping[str, tuple[float, float]], metrics: Collection[str]) -> Advice | None:
    """The advice; None for "nothing". `bounds`: of the knobs that may be proposed for. Raises ModelFailure: bad_json,
    schema or out_of_range. No value is moved inside its bounds: a model that does not keep to them has not read them.
    """
    value = json_object(text)
    try:
        advice = Advice.model_validate(value)
    except ValidationError as error:
        raise ModelFailure("schema", f"{error.error_count()} fields are not as the schema has them") from None
    if advice.decision == "nothing":
        return None
    if advice.actuator not in bounds:
        raise ModelFailure("schema", "the actuator is none of those that may be proposed for")
    if advice.target not in metrics:
        raise ModelFailure("schema", "the target is none of the run's metrics that have a better direction")
    low, high = bounds[advice.actuator]
    if not low <= advice.value <= high:
        raise ModelFailure("out_of_range", f"{advice.actuator} = {advice.value:g} is outside {low:g} to {high:g}")
    if not (0 <= advice.confidence <= 1 and 1 <= advice.horizon <= LONGEST and math.isfinite(advice.expected_change)):
        raise ModelFailure("out_of_range", f"the confidence is not 0 to 1, or the horizon not 1 to {LONGEST}")
    said = " ".join(visible(advice.reason).split())
    if not said:
        raise ModelFailure("schema", "there is no reason")
    return advice.model_copy(update={"reason": said[:REASON]})
