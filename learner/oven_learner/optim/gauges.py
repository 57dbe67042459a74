"""Gauges of the optimizer itself: what the loss does not show of how well the learning rate fits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from oven_core.errors import reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.optim import update_norm

log = logging.getLogger("oven.learner")

ALIGNMENT = MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1")
WEIGHT_NORM = MetricSpec(name="optim/weight_norm", unit="norm of all weights that train")
UPDATE_RATIO = MetricSpec(name="optim/update_ratio", unit="norm of the update over norm of the weights")
ALL = (ALIGNMENT, WEIGHT_NORM, UPDATE_RATIO)
ABSENT_IF_NAN = frozenset({ALIGNMENT.name, UPDATE_RATIO.name})
"""There was nothing to measure; a NaN of what they are measured on shows in other gauges."""
AS_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion", "Adafactor", "RMSprop")
"""Optimizers whose step is as long as the rate says, for each weight, whatever the gradient's size; their heirs and
8-bit versions too. Agents know how long a fitting step is beside the weights for such steps alone."""


class OptimizerGauges:
    """One optimizer's. Every number stays on its device.

    Nothing is measured where no one hears it or it would be another number; a gauge that raises is given up with a
    warning.
    """

    def __init__(self, optimizer: Any, model: torch.nn.Module | None, *, heard: bool, sharded: str = "") -> None:
        """`model`: what the weights are a part of; without it no one knows how large a part. `sharded`: what cuts the
        gradients into parts, in words; empty where they are whole."""
        self._optimizer = bare(optimizer)
        self._before: torch.Tensor | None = None
        self._moment = kept(self._optimizer)
        self._mean: RunningMean | None = None
        self._copies: update_norm.Copies | None = None
        self.unmeasured = self._reasons(model, sharded)
        """Gauge → why it is not measured."""
        self._measured = {spec.name for spec in ALL if heard and spec.name not in self.unmeasured}
        if ALIGNMENT.name in self._measured and self._moment is None:
            self._mean = RunningMean()
        if UPDATE_RATIO.name in self._measured and not update_norm.known(self._optimizer):
            self._copies = update_norm.Copies()

    def announced(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for spec in ALL if spec.name in self._measured)

    def before_step(self) -> dict[str, torch.Tensor]:
        """After clipping, before `optimizer.step`."""
        self._before = self._tried(UPDATE_RATIO, self._marked)
        cosine = self._tried(ALIGNMENT, self._alignment)
        return {ALIGNMENT.name: cosine} if cosine is not None else {}

    def after_step(self) -> dict[str, torch.Tensor]:
        """After `optimizer.step`, before the rate moves on and gradients are dropped."""
        found = {}
        norm = self._tried(WEIGHT_NORM, lambda: update_norm.weight_norm(self._optimizer))
        if norm is not None:
            found[WEIGHT_NORM.name] = norm
            ratio = self._tried(UPDATE_RATIO, lambda: self._ratio(norm))
            if ratio is not None:
                found[UPDATE_RATIO.name] = ratio
        return found

    def forget(self) -> None:
        """The weights were put somewhere else: the gradients of before are not on the way here."""
        if self._mean is not None:
            self._mean.forget()

    def _reasons(self, model: torch.nn.Module | None, sharded: str) -> dict[str, str]:
        if any(isinstance(parameter, DTensor) for parameter in update_norm.trained(self._optimizer)):
            sharded = sharded or "FSDP2 shards the gradients"
        if sharded:  # a rank sees its part of the gradient, and its cosine is another number
            return dict.fromkeys((spec.name for spec in ALL), f"needs whole gradients, and {sharded}")
        name, most = type(self._optimizer).__name__, f"{COPY_BYTES >> 20} MiB"
        reasons = {}
        fits = _fits(self._optimizer)
        if self._moment is None and not fits:
            reasons[ALIGNMENT.name] = (
                "needs a running mean of gradients: Adam's first moment, or a momentum of "
                f"{HORIZON[0]} to {HORIZON[1]}; {name} keeps none, "
                f"and one of our own would be above {most}"
            )
        if model is None:
            reasons[UPDATE_RATIO.name] = "needs to know how much of the model is trained: give connect(model=…)"
        elif not _mostly_trained(model):
            reasons[UPDATE_RATIO.name] = (
                "needs half of the model or more to be trained; a step of an adapter is long beside the wrong thing"
            )
        elif not update_norm.known(self._optimizer):
            if not any(known in cls for cls in _names(self._optimizer) for known in AS_ADAM):
                reasons[UPDATE_RATIO.name] = f"needs Adam, AdamW or what makes steps like theirs, and this is {name}"
            elif not fits:
                reasons[UPDATE_RATIO.name] = (
                    f"needs torch's Adam or AdamW, and this is {name}; a copy of the weights would be above {most}"
                )
        return reasons

    def _alignment(self) -> torch.Tensor | None:
        cosine = alignment(self._optimizer, self._moment if self._mean is None else self._mean)
        if self._mean is not None:
            self._mean.add(self._optimizer)
        return cosine

    def _marked(self) -> torch.Tensor | None:
        """Where the weights were, or how many steps they had behind them."""
        if self._copies is None:
            return update_norm.count(self._optimizer)
        self._copies.take(self._optimizer)
        return None

    def _ratio(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Of the norm after the step, which differs from the one before it by the ratio at most. None or NaN where no
        step was made: gradients that overflowed in float16, or nothing that was scored."""
        if self._copies is not None:
            length = self._copies.distance(self._optimizer)
            return None if length is None else _where(length > 0, length / norm)
        after = update_norm.count(self._optimizer)
        if self._before is None or after is None:
            return None
        made = after > self._before
        if not made.is_cuda and not made:
            return None
        length = update_norm.update_norm(self._optimizer)
        return None if length is None else _where(made, length / norm)

    def _tried(self, spec: MetricSpec, measure: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        if spec.name not in self._measured:
            return None
        try:
            return measure()
        except Exception as error:  # tensor subclasses of an optimizer that we don't know
            self._measured.discard(spec.name)
            log.warning("%s is no longer measured: %s", spec.name, reason(error))
            return None


@torch.no_grad()
def alignment(optimizer: Any, means: str | RunningMean | None) -> torch.Tensor | None:
    """Cosine between this step's gradient and the running mean of those before it (all parameters as one vector).

    `means`: where in the optimizer's state they are, or those that are kept beside it. One pass over gradients and
    means; the scalar stays on their device. None when there is no mean yet, or no gradient, and NaN when one of them
    has no direction: absences, not 0. Called after clipping, before `optimizer.step` (scaling does not change a
    cosine).
    """
    gradients, moments = [], []
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        own = isinstance(means, RunningMean)
        moment = means.get(parameter) if own else optimizer.state.get(parameter, {}).get(means)  # type: ignore[union-attr]
        if parameter.grad is not None and moment is not None:
            gradients.append(parameter.grad)
            moments.append(moment)
    if not gradients:
        return None
    dots = []
    for part in update_norm.slices([gradient.numel() for gradient in gradients]):
        products = torch._foreach_mul(gradients[part], moments[part])
        dots.append(torch.stack([product.sum(dtype=torch.float32) for product in products]).sum())
        del products
    dot = torch.stack(dots).sum()
    norms = [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(side))) for side in (gradients, moments)]
    cosine: torch.Tensor = dot / (norms[0] * norms[1])
    return cosine


def _where(made: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor | None:
    """Without a step there is none; on CUDA that is found out when it is read."""
    if made.is_cuda:
        return torch.where(made, ratio, torch.nan)
    return ratio if made else None


def _mostly_trained(model: torch.nn.Module) -> bool:
    """An adapter begins at 0, or half of it does, and a step that is long beside it is short beside what it adapts."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return 2 * sum(size for size, trained in sizes if trained) >= sum(size for size, _ in sizes)


def bare(optimizer: Any) -> Any:
    """accelerate wraps it."""
    return getattr(optimizer, "optimizer", optimizer)


HORIZON = (0.8, 0.95)
"""Decays for which another optimizer's buffer stands for Adam's first moment, whose usual decay is 0.9: among gradients
that are mostly noise the cosine with a mean of decay β grows as √((1 + β)/(1 − β)), and agents know it at Adam's."""
DECAY = 0.9
"""Of the mean that is kept here."""
COPY_BYTES = 128 * 1024 * 1024
"""The largest copy of the weights that is made for a gauge; there may be two: a mean, and the weights of before."""
QUANTIZED = "8bit"
"""In the names of optimizers whose state is codes and scales (bitsandbytes), not numbers."""


def _names(optimizer: Any) -> set[str]:
    """Those of its class and of all that it is made from."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def kept(optimizer: Any) -> str | None:
    """Where in its state the optimizer keeps a mean of the gradients that serves; None if nowhere."""
    groups, own = optimizer.param_groups, _names(optimizer)
    if own & {"SGD", "Muon"}:
        usable = all(HORIZON[0] <= group.get("momentum", 0.0) <= HORIZON[1] for group in groups)
        return "momentum_buffer" if usable else None
    if "Lion" in own or any(QUANTIZED in name for name in own):  # Lion's decay is 0.99
        return None
    return "exp_avg" if all("betas" in group for group in groups) else None


def _fits(optimizer: Any) -> bool:
    """Whether a copy of what is trained stays below COPY_BYTES."""
    return sum(p.numel() * p.element_size() for p in update_norm.trained(optimizer)) <= COPY_BYTES


class RunningMean:
    """An exponential moving average of the gradients, for optimizers that keep none."""

    def __init__(self) -> None:
        self._means: dict[torch.nn.Parameter, torch.Tensor] = {}

    def get(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        return self._means.get(parameter)

    @torch.no_grad()
    def add(self, optimizer: Any) -> None:
        """The gradients that are about to be used. Under a gradient scaler that leaves this step out, nothing."""
        found_inf = getattr(optimizer, "found_inf", None)
        for parameter in update_norm.trained(optimizer):
            gradient, mean = parameter.grad, self._means.get(parameter)
            if gradient is None:
                continue
            if mean is None:
                mean = self._means[parameter] = torch.zeros_like(gradient)
            if isinstance(found_inf, torch.Tensor):
                gradient = torch.where(found_inf.to(gradient.device) > 0, mean, gradient)
            mean.lerp_(gradient, 1 - DECAY)

    def forget(self) -> None:
        """The weights are others now."""
        self._means.clear()
