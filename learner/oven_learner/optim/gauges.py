"""Optimizer gauges that show whether the learning rate fits, before the loss does."""

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
"""NaN means that there was nothing to measure. A NaN in weights or gradients shows in other gauges."""
LIKE_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion", "Adafactor", "RMSprop")
"""Optimizers whose step per weight is as long as the learning rate, regardless of the gradient's size, with their
subclasses and 8-bit versions. Only for these do agents know the right ratio of update to weights."""


class OptimizerGauges:
    """The gauges of one optimizer. Every number stays on its device.

    A gauge is omitted on ranks that do not publish, and if it would measure something else. A gauge that raises is
    disabled with a warning.
    """

    def __init__(self, optimizer: Any, model: torch.nn.Module | None, *, published: bool, sharded: str = "") -> None:
        """`model`: the model that the weights belong to; it tells how large a part of it they are. `sharded`: what
        shards the gradients, in words; empty if nothing does."""
        self._optimizer = bare(optimizer)
        self._before: torch.Tensor | None = None
        self._moment = mean_of_gradients(self._optimizer)
        self._mean: RunningMean | None = None
        self._copies: update_norm.Copies | None = None
        self.unmeasured = self._reasons(model, sharded)
        """Gauge → why it is not measured."""
        self._measured = {spec.name for spec in ALL if published and spec.name not in self.unmeasured}
        if ALIGNMENT.name in self._measured and self._moment is None:
            self._mean = RunningMean()
        if UPDATE_RATIO.name in self._measured and not update_norm.is_supported(self._optimizer):
            self._copies = update_norm.Copies()

    def announced(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for spec in ALL if spec.name in self._measured)

    def before_step(self) -> dict[str, torch.Tensor]:
        """Measure what is there after clipping and before `optimizer.step`."""
        self._before = self._or_give_up(UPDATE_RATIO, self._note_weights)
        cosine = self._or_give_up(ALIGNMENT, self._alignment)
        return {ALIGNMENT.name: cosine} if cosine is not None else {}

    def after_step(self) -> dict[str, torch.Tensor]:
        """Measure what is there after `optimizer.step`, before the rate changes and gradients are dropped."""
        measured = {}
        norm = self._or_give_up(WEIGHT_NORM, lambda: update_norm.weight_norm(self._optimizer))
        if norm is not None:
            measured[WEIGHT_NORM.name] = norm
            ratio = self._or_give_up(UPDATE_RATIO, lambda: self._ratio(norm))
            if ratio is not None:
                measured[UPDATE_RATIO.name] = ratio
        return measured

    def forget(self) -> None:
        """Forget past gradients: they did not lead to these weights."""
        if self._mean is not None:
            self._mean.forget()

    def _reasons(self, model: torch.nn.Module | None, sharded: str) -> dict[str, str]:
        if any(isinstance(parameter, DTensor) for parameter in update_norm.trained(self._optimizer)):
            sharded = sharded or "FSDP2 shards the gradients"
        if sharded:  # the cosine of a rank's shard is another number
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
        elif not update_norm.is_supported(self._optimizer):
            if not any(known in cls for cls in _names(self._optimizer) for known in LIKE_ADAM):
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

    def _note_weights(self) -> torch.Tensor | None:
        """Copy the weights, or return the optimizer's count of steps."""
        if self._copies is None:
            return update_norm.step_count(self._optimizer)
        self._copies.take(self._optimizer)
        return None

    def _ratio(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Divide by the norm after the step, which differs from the one before by the ratio at most. None or NaN if the
        optimizer made no step: gradients overflowed in float16, or no completion was scored."""
        if self._copies is not None:
            length = self._copies.distance(self._optimizer)
            return None if length is None else _if_stepped(length > 0, length / norm)
        after = update_norm.step_count(self._optimizer)
        if self._before is None or after is None:
            return None
        stepped = after > self._before
        if not stepped.is_cuda and not stepped:
            return None
        length = update_norm.update_norm(self._optimizer)
        return None if length is None else _if_stepped(stepped, length / norm)

    def _or_give_up(self, spec: MetricSpec, measure: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        if spec.name not in self._measured:
            return None
        try:
            return measure()
        except Exception as error:  # for example, an optimizer with unknown tensor subclasses
            self._measured.discard(spec.name)
            log.warning("%s is no longer measured: %s", spec.name, reason(error))
            return None


@torch.no_grad()
def alignment(optimizer: Any, means: str | RunningMean | None) -> torch.Tensor | None:
    """Cosine between this step's gradient and the running mean of those before it (all parameters as one vector).

    `means`: their key in the optimizer's state, or our own running mean. The function makes one pass over gradients and
    means, and the scalar stays on their device. It returns None without a mean or a gradient, and NaN if one of them is
    0. Call it after clipping and before `optimizer.step`; scaling does not change a cosine.
    """
    gradients, moments = [], []
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if isinstance(means, RunningMean):
            moment = means.get(parameter)
        else:
            moment = optimizer.state.get(parameter, {}).get(means)
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


def _if_stepped(stepped: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor | None:
    """The ratio, or None without a step. On CUDA it is NaN instead: testing the flag would wait for the device."""
    if stepped.is_cuda:
        return torch.where(stepped, ratio, torch.nan)
    return ratio if stepped else None


def _mostly_trained(model: torch.nn.Module) -> bool:
    """Whether at least half of the weights train. An adapter starts at 0, so a step that is long relative to the
    adapter is short relative to the model."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return 2 * sum(size for size, trained in sizes if trained) >= sum(size for size, _ in sizes)


def bare(optimizer: Any) -> Any:
    """Return the optimizer without accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


HORIZON = (0.8, 0.95)
"""Decays for which another optimizer's buffer can replace Adam's first moment, whose usual decay is 0.9. If gradients
are mostly noise, the cosine with a mean of decay β grows as √((1 + β)/(1 − β)), and agents know it for Adam's."""
DECAY = 0.9
"""Decay of RunningMean."""
COPY_BYTES = 128 * 1024 * 1024
"""The largest copy of the weights for a gauge. There may be two: a mean, and the weights before the step."""
QUANTIZED = "8bit"
"""Part of the names of optimizers whose state holds codes and scales (bitsandbytes) instead of numbers."""


def _names(optimizer: Any) -> set[str]:
    """Return the names of its class and base classes."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def mean_of_gradients(optimizer: Any) -> str | None:
    """Return the key of a suitable mean of gradients in the optimizer's state, or None."""
    groups, names = optimizer.param_groups, _names(optimizer)
    if names & {"SGD", "Muon"}:
        usable = all(HORIZON[0] <= group.get("momentum", 0.0) <= HORIZON[1] for group in groups)
        return "momentum_buffer" if usable else None
    if "Lion" in names or any(QUANTIZED in name for name in names):  # Lion's decay is 0.99
        return None
    return "exp_avg" if all("betas" in group for group in groups) else None


def _fits(optimizer: Any) -> bool:
    """Whether a copy of the trained weights stays below COPY_BYTES."""
    return sum(p.numel() * p.element_size() for p in update_norm.trained(optimizer)) <= COPY_BYTES


class RunningMean:
    """An exponential moving average of the gradients, for optimizers without one."""

    def __init__(self) -> None:
        self._means: dict[torch.nn.Parameter, torch.Tensor] = {}

    def get(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        return self._means.get(parameter)

    @torch.no_grad()
    def add(self, optimizer: Any) -> None:
        """Add the gradients that the next step uses; none if a gradient scaler skips the step."""
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
        self._means.clear()
