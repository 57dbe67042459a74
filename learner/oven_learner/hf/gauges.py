"""Gauges of the optimizer itself: what the loss does not show of how well the learning rate fits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import Trainer

from oven_controller.messages import MetricSpec
from oven_learner.hf import update

log = logging.getLogger("oven.learner")

ALIGNMENT = MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1")
WEIGHT_NORM = MetricSpec(name="optim/weight_norm", unit="norm of all weights that train")
UPDATE_RATIO = MetricSpec(name="optim/update_ratio", unit="norm of the update over norm of the weights")
ABSENT_IF_NAN = frozenset({ALIGNMENT.name, UPDATE_RATIO.name})
"""There was nothing to measure; a NaN of what they are measured on shows in other gauges."""


class OptimizerGauges:
    """One trainer's, made once its optimizer exists. Every number stays on its device.

    Nothing is measured where nobody hears it or it would be another number; a gauge that raises is given up with a
    warning.
    """

    def __init__(self, trainer: Trainer, *, heard: bool) -> None:
        self._trainer = trainer
        self._optimizer: Any = _bare(trainer)
        self._measured: set[str] = set()
        self._before: torch.Tensor | None = None
        if heard and measurable(trainer):
            self._measured = {ALIGNMENT.name, WEIGHT_NORM.name}
            ratio = update.known(self._optimizer) and _mostly_trained(trainer)
            self._measured |= {UPDATE_RATIO.name} if ratio else set()

    def announced(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for spec in (ALIGNMENT, WEIGHT_NORM, UPDATE_RATIO) if spec.name in self._measured)

    def before_step(self) -> dict[str, torch.Tensor]:
        """After clipping, before `optimizer.step`."""
        self._before = self._tried(UPDATE_RATIO, lambda: update.count(self._optimizer))
        cosine = self._tried(ALIGNMENT, lambda: alignment(self._trainer))
        return {ALIGNMENT.name: cosine} if cosine is not None else {}

    def after_step(self) -> dict[str, torch.Tensor]:
        """After `optimizer.step`, before the rate moves on and gradients are dropped."""
        found = {}
        norm = self._tried(WEIGHT_NORM, lambda: update.weight_norm(self._optimizer))
        if norm is not None:
            found[WEIGHT_NORM.name] = norm
            ratio = self._tried(UPDATE_RATIO, lambda: self._ratio(norm))
            if ratio is not None:
                found[UPDATE_RATIO.name] = ratio
        return found

    def _ratio(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Of the norm after the step, which differs from the one before it by the ratio at most. None or NaN where no
        step was made: gradients that overflowed in float16, or nothing that was scored."""
        after = update.count(self._optimizer)
        if self._before is None or after is None:
            return None
        made = after > self._before
        if not made.is_cuda and not made:
            return None
        length = update.update_norm(self._optimizer)
        if length is None:
            return None
        ratio = length / norm
        return torch.where(made, ratio, torch.nan) if made.is_cuda else ratio

    def _tried(self, spec: MetricSpec, measure: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        if spec.name not in self._measured:
            return None
        try:
            return measure()
        except Exception as error:  # tensor subclasses of an optimizer that we don't know
            self._measured.discard(spec.name)
            log.warning("%s is no longer measured: %s: %s", spec.name, type(error).__name__, error)
            return None


def measurable(trainer: Trainer) -> bool:
    """Only whole tensors: a sharded rank sees its part of the gradient, and its cosine is another number."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return False
    parameters = (parameter for group in _bare(trainer).param_groups for parameter in group["params"])
    return not any(isinstance(parameter, DTensor) for parameter in parameters)


@torch.no_grad()
def alignment(trainer: Trainer) -> torch.Tensor | None:
    """Cosine between this step's gradient and Adam's first moment before it (all parameters as one vector).

    One pass over gradients and moments; the scalar stays on their device. None when the optimizer keeps no first
    moment, or there is no gradient, and NaN when one of them has no direction: absences, not 0. Called after clipping,
    before `optimizer.step` (scaling does not change a cosine).
    """
    optimizer = _bare(trainer)
    gradients, moments = [], []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moment = optimizer.state.get(parameter, {}).get("exp_avg")
            if parameter.grad is not None and moment is not None:
                gradients.append(parameter.grad)
                moments.append(moment)
    if not gradients:
        return None
    dots = []
    for part in _parts([gradient.numel() for gradient in gradients]):
        products = torch._foreach_mul(gradients[part], moments[part])
        dots.append(torch.stack([product.sum(dtype=torch.float32) for product in products]).sum())
        del products
    dot = torch.stack(dots).sum()
    norms = [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(side))) for side in (gradients, moments)]
    cosine: torch.Tensor = dot / (norms[0] * norms[1])
    return cosine


def _parts(sizes: list[int]) -> Iterator[slice]:
    """Slices of at most `update.CHUNK` elements together; a larger tensor stands alone."""
    start = held = 0
    for index, size in enumerate(sizes):
        if held and held + size > update.CHUNK:
            yield slice(start, index)
            start, held = index, 0
        held += size
    yield slice(start, len(sizes))


def _mostly_trained(trainer: Trainer) -> bool:
    """An adapter begins at 0, or half of it does, and a step that is long beside it is short beside what it adapts."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in trainer.model.parameters()]  # type: ignore[union-attr]
    return 2 * sum(size for size, trained in sizes if trained) >= sum(size for size, _ in sizes)


def _bare(trainer: Trainer) -> Any:
    """accelerate wraps it."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)
