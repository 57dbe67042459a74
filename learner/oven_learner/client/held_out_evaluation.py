"""A loop's own held-out measurement: at the start, every few steps, at the end, and whenever somebody asks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from oven_core.protocol.messages import MetricSpec
from oven_learner.random_state import undisturbed

log = logging.getLogger("oven.learner")

Measured = Mapping[str, float | Sequence[float]]
"""Metric → its value, or the value of each held-out example, whose mean is published."""

DOWN = ("loss", "perplexity", "ppl", "error", "nll", "bpb", "bits_per_byte", "wer", "cer", "mse", "mae", "rmse", "fid")
UP = ("accuracy", "acc", "reward", "score", "f1", "auc", "bleu", "rouge", "map", "iou", "psnr", "ssim", "pass@1")
"""Last words of metrics' names and which way is better, where `metrics=` does not say it."""


class Evaluation:
    """Calls the user's function with the model's modes and the random state put back after it: measuring changes no
    bit of the training."""

    def __init__(self, evaluate: Callable[[], Measured], every: int, model: Any, last: int | None) -> None:
        """`last`: the step after which the loop ends."""
        self._evaluate, self._every, self._model, self._last_step = evaluate, every, model, last
        self._asked = False
        self._steps = 0
        self.count = 0
        """How often it has measured for the run."""
        self.last: dict[str, float] = {}
        """What was measured last."""

    def ask(self, _: float | None) -> None:
        """With the next step, whenever it would have been due."""
        self._asked = True

    def now(self) -> dict[str, float]:
        """Measure."""
        with undisturbed(self._model):
            self.last = means(self._evaluate())
        self.count += 1
        return self.last

    def read(self, name: str) -> float:
        """One metric now, beside the run's own measurements. Raises KeyError where it is not measured."""
        with undisturbed(self._model):
            return means(self._evaluate())[name]

    def due(self, step: int) -> dict[str, float]:
        """Called once per step: what was measured, if it was."""
        self._steps += 1
        if not (self._asked or self._steps % self._every == 0 or step == self._last_step):
            return {}
        self._asked = False
        return self.now()

    def announced(self, given: tuple[MetricSpec, ...]) -> tuple[MetricSpec, ...]:
        """The names that the first measurement had; with the user's own directions, as far as `given` has them."""
        directions = {spec.name: spec for spec in given}
        specs = tuple(
            directions.get(name, MetricSpec(name=name, better=better(name))).model_copy(update={"held_out": True})
            for name in self.last
        )
        if all(spec.better == "neither" for spec in specs):
            log.warning(
                "which way is better is known of none of %s: no agent goes by them; say it in connect(metrics=("
                'MetricSpec(name="…", better="up", held_out=True),))', ", ".join(self.last) or "no metric",
            )  # fmt: skip
        return specs


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
    """By the last word of the name."""
    word = name.lower().rpartition("/")[2]
    if any(word == known or word.endswith("_" + known) for known in DOWN):
        return "down"
    return "up" if any(word == known or word.endswith("_" + known) for known in UP) else "neither"
