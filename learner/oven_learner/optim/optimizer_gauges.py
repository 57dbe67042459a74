"""Gauges of the optimizer and its weights that show a poor learning rate before the loss does."""

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

GRADIENT_ALIGNMENT = MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1")
WEIGHT_NORM = MetricSpec(name="optim/weight_norm", unit="norm of all trainable weights")
UPDATE_RATIO = MetricSpec(name="optim/update_ratio", unit="norm of the update / norm of the weights")
ALL_GAUGES = (GRADIENT_ALIGNMENT, WEIGHT_NORM, UPDATE_RATIO)
ABSENT_IF_NAN = frozenset({GRADIENT_ALIGNMENT.name, UPDATE_RATIO.name})
"""Gauges for which NaN means that there was nothing to measure. In the weight norm, it means that weights are NaN."""
ADAM_LIKE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion", "Adafactor", "RMSprop")
"""Optimizers that change each weight by about the learning rate, regardless of the gradient's size. Subclasses and
8-bit versions are included. The agents' thresholds for the update ratio apply only to these optimizers."""
MOMENTUM_RANGE = (0.8, 0.95)
"""Momentum values with which another optimizer's buffer can replace Adam's first moment, whose decay is usually 0.9.
With mostly noisy gradients, the cosine grows with the decay β as √((1 + β)/(1 − β)), and the agents' thresholds assume
Adam's decay."""
MEAN_DECAY = 0.9
"""Decay of RunningMean, per step."""
MAX_COPY_BYTES = 128 * 1024 * 1024
"""Maximum bytes of one extra buffer. There may be two: the mean gradients, and the weights before the step."""
QUANTIZED = "8bit"
"""Part of the names of optimizers whose state contains codes and scales (bitsandbytes) instead of numbers."""


class OptimizerGauges:
    """The gauges of one optimizer. Every number stays on its device. Ranks that do not publish measure nothing. A gauge
    is omitted if its value would be misleading, and disabled with a warning if it raises an error."""

    def __init__(self, optimizer: Any, model: torch.nn.Module | None, *, publishes: bool, sharding: str = "") -> None:
        """`model` owns the weights, and shows which share of them is trained. `sharding` describes how the gradients
        are sharded, for example "FSDP2 shards the gradients". It is empty if they are not."""
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._steps_before: torch.Tensor | None = None
        self._mean_key = gradient_mean_key(self._optimizer)
        self._gradient_mean: RunningMean | None = None
        self._copies: update_norm.CopiesBeforeStep | None = None
        self.unmeasured = self._unmeasurable_gauges(model, sharding)
        """Gauge → the reason why it is not measured."""
        self._enabled_names = {spec.name for spec in ALL_GAUGES if publishes and spec.name not in self.unmeasured}
        if GRADIENT_ALIGNMENT.name in self._enabled_names and self._mean_key is None:
            self._gradient_mean = RunningMean()
        if UPDATE_RATIO.name in self._enabled_names and not update_norm.is_supported(self._optimizer):
            self._copies = update_norm.CopiesBeforeStep()

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for spec in ALL_GAUGES if spec.name in self._enabled_names)

    def before_step(self) -> dict[str, torch.Tensor]:
        """Return the gauges that are measured before `optimizer.step`. Call it after clipping."""
        self._steps_before = self._measure_safely(UPDATE_RATIO, self._prepare_update_ratio)
        cosine = self._measure_safely(GRADIENT_ALIGNMENT, self._measure_alignment)
        return {GRADIENT_ALIGNMENT.name: cosine} if cosine is not None else {}

    def after_step(self) -> dict[str, torch.Tensor]:
        """Return the gauges that are measured after `optimizer.step`. Call it before the learning rate changes and
        before gradients are cleared."""
        measurements = {}
        norm = self._measure_safely(WEIGHT_NORM, lambda: update_norm.weight_norm(self._optimizer))
        if norm is not None:
            measurements[WEIGHT_NORM.name] = norm
            ratio = self._measure_safely(UPDATE_RATIO, lambda: self._update_ratio(norm))
            if ratio is not None:
                measurements[UPDATE_RATIO.name] = ratio
        return measurements

    def forget(self) -> None:
        """Forget past gradients, because they did not lead to the current weights."""
        if self._gradient_mean is not None:
            self._gradient_mean.forget()

    def _unmeasurable_gauges(self, model: torch.nn.Module | None, sharding: str) -> dict[str, str]:
        """Return the reason for each gauge that cannot be measured."""
        if any(isinstance(parameter, DTensor) for parameter in update_norm.trained_parameters(self._optimizer)):
            sharding = sharding or "FSDP2 shards the gradients"
        if sharding:  # the cosine of one rank's shard would be misleading
            return dict.fromkeys((spec.name for spec in ALL_GAUGES), f"needs unsharded gradients, but {sharding}")
        name, limit = type(self._optimizer).__name__, f"{MAX_COPY_BYTES >> 20} MiB"
        reasons = {}
        copy_fits = _copy_fits(self._optimizer)
        if self._mean_key is None and not copy_fits:
            reasons[GRADIENT_ALIGNMENT.name] = (
                f"needs a running mean of gradients: Adam's first moment, or a momentum of {MOMENTUM_RANGE[0]} to "
                f"{MOMENTUM_RANGE[1]}; {name} keeps none, and a separate one would exceed {limit}"
            )
        if model is None:
            reasons[UPDATE_RATIO.name] = "needs the model, to know how much of it is trained; pass connect(model=…)"
        elif not _is_mostly_trained(model):
            reasons[UPDATE_RATIO.name] = (
                "needs at least half of the model to be trained; an adapter starts at 0, so its steps are relatively "
                "long"
            )
        elif not update_norm.is_supported(self._optimizer):
            if not any(known_name in cls for cls in _class_names(self._optimizer) for known_name in ADAM_LIKE):
                reasons[UPDATE_RATIO.name] = f"needs Adam, AdamW or a similar optimizer, but this is {name}"
            elif not copy_fits:
                reasons[UPDATE_RATIO.name] = (
                    f"needs torch's Adam or AdamW; this is {name}, and a copy of the weights would exceed {limit}"
                )
        return reasons

    def _measure_alignment(self) -> torch.Tensor | None:
        cosine = gradient_alignment(
            self._optimizer, self._mean_key if self._gradient_mean is None else self._gradient_mean
        )
        if self._gradient_mean is not None:
            self._gradient_mean.add(self._optimizer)
        return cosine

    def _prepare_update_ratio(self) -> torch.Tensor | None:
        """Copy the weights, or return the optimizer's step count if no copy is needed to measure the update."""
        if self._copies is None:
            return update_norm.step_count(self._optimizer)
        self._copies.take(self._optimizer)
        return None

    def _update_ratio(self, weight_norm: torch.Tensor) -> torch.Tensor | None:
        """Return the norm of the update divided by the norm of the weights after the step. With the norm before the
        step, the result would differ by a relative error of at most the ratio itself. Return None or NaN if the
        optimizer skipped the step, because gradients overflowed in float16 or no completion was scored."""
        if self._copies is not None:
            change = self._copies.distance(self._optimizer)
            return None if change is None else _ratio_if_stepped(change > 0, change / weight_norm)
        steps_after = update_norm.step_count(self._optimizer)
        if self._steps_before is None or steps_after is None:
            return None
        has_stepped = steps_after > self._steps_before
        if not has_stepped.is_cuda and not has_stepped:
            return None
        change = update_norm.update_norm(self._optimizer)
        return None if change is None else _ratio_if_stepped(has_stepped, change / weight_norm)

    def _measure_safely(self, spec: MetricSpec, measure: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Return the measurement, or None if the gauge is disabled. Disable a gauge that raises an error."""
        if spec.name not in self._enabled_names:
            return None
        try:
            return measure()
        except Exception as error:  # for example, an optimizer with unknown tensor subclasses
            self._enabled_names.discard(spec.name)
            log.warning("%s is no longer measured: %s", spec.name, reason(error))
            return None


@torch.no_grad()
def gradient_alignment(optimizer: Any, means: str | RunningMean | None) -> torch.Tensor | None:
    """Return the cosine between this step's gradient and the running mean of earlier gradients, over all parameters, as
    a scalar on their device. `means` is the key of the mean in the optimizer's state, or a RunningMean. Return None if
    there is no mean or no gradient, and NaN if one of them is 0. Call this before `optimizer.step`. Clipping does not
    change the cosine."""
    gradients, moments = [], []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
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
    gradient_norm, moment_norm = (
        torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))) for tensors in (gradients, moments)
    )
    cosine: torch.Tensor = dot / (gradient_norm * moment_norm)
    return cosine


def _ratio_if_stepped(has_stepped: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor | None:
    """Return the ratio, or None without a step. On CUDA, NaN replaces None, because reading the flag would wait."""
    if has_stepped.is_cuda:
        return torch.where(has_stepped, ratio, torch.nan)
    return ratio if has_stepped else None


def _is_mostly_trained(model: torch.nn.Module) -> bool:
    """Whether at least half of the weights are trained. An adapter starts at 0, so a step that is long relative to the
    adapter is short relative to the model."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return 2 * sum(size for size, is_trained in sizes if is_trained) >= sum(size for size, _ in sizes)


def _class_names(optimizer: Any) -> set[str]:
    """Return the names of the optimizer's class and base classes."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def gradient_mean_key(optimizer: Any) -> str | None:
    """Return the key of a mean of gradients in the optimizer's state, or None without a suitable one."""
    groups, names = optimizer.param_groups, _class_names(optimizer)
    if names & {"SGD", "Muon"}:
        usable = all(MOMENTUM_RANGE[0] <= group.get("momentum", 0.0) <= MOMENTUM_RANGE[1] for group in groups)
        return "momentum_buffer" if usable else None
    if "Lion" in names or any(QUANTIZED in name for name in names):  # Lion's decay is 0.99
        return None
    return "exp_avg" if all("betas" in group for group in groups) else None


def _copy_fits(optimizer: Any) -> bool:
    """Whether a copy of the trained weights stays below MAX_COPY_BYTES."""
    return sum(p.numel() * p.element_size() for p in update_norm.trained_parameters(optimizer)) <= MAX_COPY_BYTES


class RunningMean:
    """An exponential moving average of the gradients, for optimizers without one."""

    def __init__(self) -> None:
        self._means: dict[torch.nn.Parameter, torch.Tensor] = {}

    def get(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the mean gradient of the parameter, or None if there is none yet."""
        return self._means.get(parameter)

    @torch.no_grad()
    def add(self, optimizer: Any) -> None:
        """Add the gradients that the next step uses. Change nothing if a gradient scaler skips the step."""
        found_inf = getattr(optimizer, "found_inf", None)
        for parameter in update_norm.trained_parameters(optimizer):
            gradient, mean = parameter.grad, self._means.get(parameter)
            if gradient is None:
                continue
            if mean is None:
                mean = self._means[parameter] = torch.zeros_like(gradient)
            if isinstance(found_inf, torch.Tensor):
                gradient = torch.where(found_inf.to(gradient.device) > 0, mean, gradient)
            mean.lerp_(gradient, 1 - MEAN_DECAY)

    def forget(self) -> None:
        self._means.clear()
