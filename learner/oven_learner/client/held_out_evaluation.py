"""Runs the user's held-out evaluation at the start, every few steps, at the end, and on request."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from oven_core.protocol.messages import MetricSpec
from oven_learner.random_state import preserve_state

log = logging.getLogger("oven.learner")

Measurements = Mapping[str, float | Sequence[float]]
"""Metric → its value, or a list with the value of each held-out example. The mean of a list is published."""

LOWER_IS_BETTER = re.compile(r"(^|_)(loss|perplexity|ppl|error|nll|bpb|bits_per_byte|wer|cer|mse|mae|rmse|fid)\Z")
HIGHER_IS_BETTER = re.compile(r"(^|_)(accuracy|acc|reward|score|f1|auc|bleu|rouge|map|iou|psnr|ssim|pass@1)\Z")
"""Last words of metric names, used to guess the better direction of a metric that `metrics=` does not announce."""


class Evaluation:
    """The user's held-out evaluation. It restores the model's train or eval modes and the random state, so that
    training is bit-identical with and without it."""

    def __init__(self, evaluate: Callable[[], Measurements], interval: int, model: Any) -> None:
        self._evaluate, self._interval, self._model = evaluate, interval, model
        self._requested = False
        self.last: dict[str, float] = {}
        """Metric → its value in the last evaluation."""

    def request(self, _: float | None) -> None:
        """Request an evaluation at the next step, even if none is due. The value of the action is ignored."""
        self._requested = True

    def measure(self) -> dict[str, float]:
        """Evaluate now, and store the results in `last`."""
        with preserve_state(self._model):
            self.last = means(self._evaluate())
        return self.last

    def measure_one(self, name: str) -> float:
        """Evaluate now, and return one metric without storing the results. Raises KeyError if it is not measured."""
        with preserve_state(self._model):
            return means(self._evaluate())[name]

    def measure_if_due(self, step_count: int, *, is_last: bool) -> dict[str, float] | None:
        """Measure if an evaluation was requested, if this is the last step, or if `step_count` is a multiple of the
        interval. Otherwise return None. `step_count` is the number of steps so far."""
        if not (self._requested or step_count % self._interval == 0 or is_last):
            return None
        self._requested = False
        return self.measure()

    def held_out_specs(self, specs: tuple[MetricSpec, ...]) -> tuple[MetricSpec, ...]:
        """Return specs of the measured metrics, marked as held out. Directions come from `specs`, or else the names."""
        by_name = {spec.name: spec for spec in specs}
        measured = [by_name.get(name, MetricSpec(name=name, better=better_direction(name))) for name in self.last]
        if all(spec.better == "neither" for spec in measured):
            log.warning(
                "the better direction of %s is unknown, so agents cannot use these metrics; specify it with "
                'connect(metrics=(MetricSpec(name="…", better="up", held_out=True),))',
                ", ".join(self.last) or "no metric",
            )
        return tuple(spec.model_copy(update={"held_out": True}) for spec in measured)


def means(measurements: Measurements) -> dict[str, float]:
    """Replace each list of values with its mean. An empty list gives NaN."""
    mean_values: dict[str, float] = {}
    for name, value in measurements.items():
        if hasattr(value, "__len__") and getattr(value, "ndim", 1) != 0:  # a zero-dimensional array is a number
            examples = [float(example) for example in cast("Sequence[float]", value)]
            mean_values[name] = math.fsum(examples) / len(examples) if examples else math.nan
        else:
            mean_values[name] = float(cast("float", value))
    return mean_values


def better_direction(name: str) -> Literal["up", "down", "neither"]:
    """Guess the better direction of a metric from the last word of its name."""
    last_part = name.lower().rpartition("/")[2]
    if LOWER_IS_BETTER.search(last_part):
        return "down"
    return "up" if HIGHER_IS_BETTER.search(last_part) else "neither"
