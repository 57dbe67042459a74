"""Runs the user's held-out evaluation at the start, every few steps, at the end, and on request from an agent."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from oven_core.protocol.messages import MetricSpec
from oven_learner.random_state import preserved_state

log = logging.getLogger("oven.learner")

Measured = Mapping[str, float | Sequence[float]]
"""Metric → its value, or the value of each held-out example, whose mean is published."""

DOWN = ("loss", "perplexity", "ppl", "error", "nll", "bpb", "bits_per_byte", "wer", "cer", "mse", "mae", "rmse", "fid")
UP = ("accuracy", "acc", "reward", "score", "f1", "auc", "bleu", "rouge", "map", "iou", "psnr", "ssim", "pass@1")
"""Last words of metric names, by the direction that is better, for metrics that `metrics=` does not name."""


class Evaluation:
    """Calls the user's function, then restores the model's modes and the random state, so that training is
    bit-identical."""

    def __init__(self, evaluate: Callable[[], Measured], every: int, model: Any) -> None:
        self._evaluate, self._every, self._model = evaluate, every, model
        self._requested = False
        self.last: dict[str, float] = {}
        """Results of the latest evaluation."""

    def request(self, _: float | None) -> None:
        """Evaluate at the next step, even if it is not due."""
        self._requested = True

    def measure(self) -> dict[str, float]:
        """Measure now, for the run."""
        with preserved_state(self._model):
            self.last = means(self._evaluate())
        return self.last

    def read(self, name: str) -> float:
        """Measure one metric now, outside the run's own measurements. Raises KeyError if it is not measured."""
        with preserved_state(self._model):
            return means(self._evaluate())[name]

    def measure_if_due(self, count: int, *, is_last: bool) -> dict[str, float] | None:
        """Measure at every `every`-th step, at the last one, and on request; otherwise return None. `count`: steps so
        far."""
        if not (self._requested or count % self._every == 0 or is_last):
            return None
        self._requested = False
        return self.measure()

    def held_out_specs(self, specs: tuple[MetricSpec, ...]) -> tuple[MetricSpec, ...]:
        """Return the metrics of the first measurement, as held out. Directions come from `specs`, or from the names."""
        by_name = {spec.name: spec for spec in specs}
        announced = tuple(
            by_name.get(name, MetricSpec(name=name, better=better(name))).model_copy(update={"held_out": True})
            for name in self.last
        )
        if all(spec.better == "neither" for spec in announced):
            log.warning(
                "the better direction of %s is unknown, so agents cannot use these metrics; say it in "
                'connect(metrics=(MetricSpec(name="…", better="up", held_out=True),))',
                ", ".join(self.last) or "no metric",
            )
        return announced


def means(measured: Measured) -> dict[str, float]:
    """Replace the list of a metric's examples with their mean. An empty list gives NaN."""
    published: dict[str, float] = {}
    for name, value in measured.items():
        if hasattr(value, "__len__") and getattr(value, "ndim", 1) != 0:  # a zero-dimensional array is a number
            examples = [float(example) for example in cast("Sequence[float]", value)]
            published[name] = math.fsum(examples) / len(examples) if examples else math.nan
        else:
            published[name] = float(cast("float", value))
    return published


def better(name: str) -> Literal["up", "down", "neither"]:
    """Guess the better direction of a metric from the last word of its name."""
    word = name.lower().rpartition("/")[2]
    if any(word == ending or word.endswith("_" + ending) for ending in DOWN):
        return "down"
    return "up" if any(word == ending or word.endswith("_" + ending) for ending in UP) else "neither"
