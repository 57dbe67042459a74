"""A loop's own held-out measurement: at the start, every few steps, at the end, and whenever somebody asks."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from oven_controller.protocol.messages import MetricSpec

log = logging.getLogger("oven.learner")

DOWN = ("loss", "perplexity", "ppl", "error", "nll", "bpb", "bits_per_byte", "wer", "cer", "mse", "mae", "rmse", "fid")
UP = ("accuracy", "acc", "reward", "score", "f1", "auc", "bleu", "rouge", "map", "iou", "psnr", "ssim", "pass@1")
"""Last words of metrics' names and which way is better, where `metrics=` does not say it."""


class Evaluation:
    """Calls the user's function with the model's modes and the random state put back after it: measuring changes no
    bit of the training."""

    def __init__(self, evaluate: Callable[[], Mapping[str, float]], every: int, model: Any, last: int | None) -> None:
        """`last`: the step after which the loop ends."""
        self._evaluate, self._every, self._model, self._last_step = evaluate, every, model, last
        self._asked = False
        self._steps = 0
        self.last: dict[str, float] = {}
        """What was measured last."""

    def ask(self, _: float | None) -> None:
        """With the next step, whenever it would have been due."""
        self._asked = True

    def now(self) -> dict[str, float]:
        """Measure."""
        with _undisturbed(self._model):
            self.last = {name: float(value) for name, value in self._evaluate().items()}
        return self.last

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


def better(name: str) -> Literal["up", "down", "neither"]:
    """By the last word of the name."""
    word = name.lower().rpartition("/")[2]
    if any(word == known or word.endswith("_" + known) for known in DOWN):
        return "down"
    return "up" if any(word == known or word.endswith("_" + known) for known in UP) else "neither"


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Nothing is loaded for it: only who was imported has a state."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    own = random.getstate()
    theirs = numpy.random.get_state() if numpy else None
    modes = {module: module.training for module in model.modules()} if hasattr(model, "modules") else {}
    cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    on_cpu = torch.get_rng_state() if torch else None
    on_cuda = torch.cuda.get_rng_state_all() if torch and cuda else None
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        random.setstate(own)
        if numpy:
            numpy.random.set_state(theirs)
        if torch:
            torch.set_rng_state(on_cpu)
        if torch and cuda:
            torch.cuda.set_rng_state_all(on_cuda)
