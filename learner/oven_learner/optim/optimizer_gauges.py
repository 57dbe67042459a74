"""Gauges of the optimizer and its weights that show a poor learning rate before the loss does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch

from oven_core.errors import reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.optim import update_norm
from oven_learner.optim.sharding import IsCounted, Sharding, count_all, counted_groups, local

log = logging.getLogger("oven.learner")

T = TypeVar("T")

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
SUM_COUNT = 6
"""Number of sums over the elements of all ranks from which the gauges are computed."""
QUANTIZED = "8bit"
"""Part of the names of optimizers whose state contains codes and scales (bitsandbytes) instead of numbers."""


class OptimizerGauges:
    """The gauges of one optimizer. Every number stays on its device. A gauge is omitted if its value would be
    misleading, and disabled with a warning if it raises an error.

    If the parameters are sharded, every rank measures its own elements, and `after_step` adds the parts of all ranks in
    one all-reduce. Otherwise, ranks that do not publish measure nothing.
    """

    def __init__(
        self,
        optimizer: Any,
        model: torch.nn.Module | None,
        *,
        publishes: bool,
        sharding: Sharding | None = None,
        obstacle: str = "",
    ) -> None:
        """`model` owns the weights, and shows which share of them is trained. `obstacle` is a reason why nothing can be
        measured, for example "needs gradients, but …". With `sharding`, this call is a collective."""
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._sharding = sharding
        self._is_counted = sharding.is_counted if sharding is not None else count_all
        self._steps_before: torch.Tensor | None = None
        self._alignment: Alignment | None = None
        self._mean_key = gradient_mean_key(self._optimizer)
        self._gradient_mean: RunningMean | None = None
        self._copies: update_norm.CopiesBeforeStep | None = None
        self.unmeasured = self._unmeasurable_gauges(model, obstacle)
        """Gauge → the reason why it is not measured."""
        measures = publishes or sharding is not None
        self._enabled_names = {spec.name for spec in ALL_GAUGES if measures and spec.name not in self.unmeasured}
        if GRADIENT_ALIGNMENT.name in self._enabled_names and self._mean_key is None:
            self._gradient_mean = RunningMean(self._is_counted)
        if UPDATE_RATIO.name in self._enabled_names and not update_norm.is_supported(self._optimizer):
            self._copies = update_norm.CopiesBeforeStep(self._is_counted)

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for spec in ALL_GAUGES if spec.name in self._enabled_names)

    def before_step(self) -> dict[str, torch.Tensor]:
        """Return the gauges that are known before `optimizer.step`. Call it after clipping."""
        self._steps_before = self._measure_safely(UPDATE_RATIO, self._prepare_update_norm)
        self._alignment = self._measure_safely(GRADIENT_ALIGNMENT, self._measure_alignment)
        if self._alignment is None or self._sharding is not None:
            return {}
        return {GRADIENT_ALIGNMENT.name: self._alignment.cosine}

    def after_step(self, shard_norms: Mapping[str, torch.Tensor | None] | None = None) -> dict[str, torch.Tensor]:
        """Return the gauges that are known after `optimizer.step`. Call it before the learning rate changes and before
        gradients are cleared. If the parameters are sharded, this is a collective, and `shard_norms` are further norms
        of this rank's elements, by name, which are combined with those of the other ranks."""
        if self._sharding is not None:
            sums = self._sharding.sum(self.shard_sums(shard_norms))
            return self.gauges_from_sums(sums, shard_norms or {})
        weights, update = self._measure_norms()
        if weights is None:
            return {}
        ratio = {UPDATE_RATIO.name: update / weights} if update is not None else {}
        return {WEIGHT_NORM.name: weights, **ratio}

    def forget(self) -> None:
        """Forget past gradients, because they did not lead to the current weights."""
        if self._gradient_mean is not None:
            self._gradient_mean.forget()

    def shard_sums(self, shard_norms: Mapping[str, torch.Tensor | None] | None = None) -> torch.Tensor:
        """Return this rank's terms of the sums over all elements from which `gauges_from_sums` computes the gauges, in
        float64. Call it at the same time as `after_step`. A gauge that failed is NaN."""
        weights, update = self._measure_norms()
        has_stepped = None if update is None else (~update.isnan()).double()  # the update of a skipped step is NaN
        parts = {
            GRADIENT_ALIGNMENT.name: self._alignment or (None, None, None),
            WEIGHT_NORM.name: (weights,),
            UPDATE_RATIO.name: (None if update is None else update.nan_to_num(), has_stepped),
            **{name: (norm,) for name, norm in (shard_norms or {}).items()},
        }
        enabled_names = self._enabled_names | (shard_norms or {}).keys()
        known = [part for numbers in parts.values() for part in numbers if part is not None]
        device = next((part.device for part in known if part.device.type != "cpu"), torch.device("cpu"))
        # A rank without elements adds 0.
        missing = {name: torch.tensor(0.0 if name in enabled_names else torch.nan, device=device) for name in parts}
        numbers = torch.stack([
            (missing[name] if part is None else part).to(device, torch.float64)
            for name, name_parts in parts.items()
            for part in name_parts
        ])  # fmt: skip
        return torch.cat([numbers[:1], numbers[1:].square()])  # the first one is a dot product

    def gauges_from_sums(self, sums: torch.Tensor, shard_names: Iterable[str] = ()) -> dict[str, torch.Tensor]:
        """Return the gauges, given the sums of `shard_sums` over all ranks. `shard_names` are the names of its argument
        `shard_norms`."""
        dot, *squares = sums.unbind()
        gradient, mean, weight, change, stepped_ranks, *shard_totals = (square.sqrt() for square in squares)
        gauges = {
            GRADIENT_ALIGNMENT.name: dot / (gradient * mean),
            WEIGHT_NORM.name: weight,
            UPDATE_RATIO.name: torch.where(stepped_ranks > 0, change / weight, torch.nan),
        }
        totals = dict(zip(shard_names, shard_totals, strict=True))
        return {name: value for name, value in gauges.items() if name in self._enabled_names} | totals

    def _measure_norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the norms of the weights and of the update."""
        weights = self._measure_safely(WEIGHT_NORM, lambda: update_norm.weight_norm(self._optimizer, self._is_counted))
        return weights, self._measure_safely(UPDATE_RATIO, self._measure_update_norm)

    def _unmeasurable_gauges(self, model: torch.nn.Module | None, obstacle: str) -> dict[str, str]:
        """Return the reason for each gauge that cannot be measured. All ranks return the same reasons."""
        if obstacle:
            return dict.fromkeys((spec.name for spec in ALL_GAUGES), obstacle)
        name, limit = type(self._optimizer).__name__, f"{MAX_COPY_BYTES >> 20} MiB"
        reasons = {}
        copy_fits = self._copy_fits()
        is_mostly_trained = model is None or self._is_mostly_trained(model)
        if self._mean_key is None and not copy_fits:
            reasons[GRADIENT_ALIGNMENT.name] = (
                f"needs a running mean of gradients: Adam's first moment, or a momentum of {MOMENTUM_RANGE[0]} to "
                f"{MOMENTUM_RANGE[1]}; {name} keeps none, and a separate one would exceed {limit}"
            )
        if model is None:
            reasons[UPDATE_RATIO.name] = "needs the model, to know how much of it is trained; pass connect(model=…)"
        elif not is_mostly_trained:
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

    def _copy_fits(self) -> bool:
        """Whether a copy of the trained weights stays below MAX_COPY_BYTES, on average over the ranks."""
        weights = [local(parameter) for parameter in update_norm.trained_parameters(self._optimizer)]
        byte_count = sum(tensor.numel() * tensor.element_size() for tensor in weights)
        if self._sharding is None:
            return byte_count <= MAX_COPY_BYTES
        total, rank_count = self._sharding.sum(torch.tensor([byte_count, 1.0], dtype=torch.float64)).tolist()
        return bool(total <= rank_count * MAX_COPY_BYTES)

    def _is_mostly_trained(self, model: torch.nn.Module) -> bool:
        """Whether at least half of the weights are trained. An adapter starts at 0, so a step that is long relative to
        the adapter is short relative to the model."""
        counts = [0, 0]  # of frozen and trained weights
        for parameter in filter(self._is_counted, model.parameters()):
            # With ZeRO-3, `parameter` has no elements between the steps.
            counts[parameter.requires_grad] += getattr(parameter, "ds_numel", local(parameter).numel())
        if self._sharding is not None:
            counts = [round(count) for count in self._sharding.sum(torch.tensor(counts, dtype=torch.float64)).tolist()]
        frozen, trained = counts
        return trained >= frozen

    def _measure_alignment(self) -> Alignment | None:
        means = self._mean_key if self._gradient_mean is None else self._gradient_mean
        alignment = gradient_alignment(self._optimizer, means, self._is_counted)
        if self._gradient_mean is not None:
            self._gradient_mean.add(self._optimizer)
        return alignment

    def _prepare_update_norm(self) -> torch.Tensor | None:
        """Copy the weights, or return the optimizer's step count if no copy is needed to measure the update."""
        if self._copies is None:
            return update_norm.step_count(self._optimizer)
        self._copies.take(self._optimizer)
        return None

    def _measure_update_norm(self) -> torch.Tensor | None:
        """Return the norm of the update. The gauge divides it by the norm of the weights after the step. With the norm
        before the step, the result would differ by a relative error of at most the ratio itself. Return NaN if the
        optimizer skipped the step, because gradients overflowed in float16 or no completion was scored, and None
        without gradients."""
        if self._copies is not None:
            change = self._copies.distance(self._optimizer)
            return None if change is None else _nan_unless(change > 0, change)
        steps_after = update_norm.step_count(self._optimizer)
        if self._steps_before is None or steps_after is None:
            return None
        change = update_norm.update_norm(self._optimizer, self._is_counted)
        return None if change is None else _nan_unless(steps_after > self._steps_before, change)

    def _measure_safely(self, spec: MetricSpec, measure: Callable[[], T | None]) -> T | None:
        """Return the measurement, or None if the gauge is disabled. Disable a gauge that raises an error."""
        if spec.name not in self._enabled_names:
            return None
        try:
            return measure()
        except Exception as error:  # for example, an optimizer with unknown tensor subclasses
            self._enabled_names.discard(spec.name)
            log.warning("%s is no longer measured: %s", spec.name, reason(error))
            return None


class Alignment(NamedTuple):
    """Scalars on the device from which the cosine between gradient and mean gradient is computed."""

    dot: torch.Tensor
    gradient_norm: torch.Tensor
    mean_norm: torch.Tensor

    @property
    def cosine(self) -> torch.Tensor:
        return self.dot / (self.gradient_norm * self.mean_norm)


@torch.no_grad()
def gradient_alignment(
    optimizer: Any, means: str | RunningMean | None, is_counted: IsCounted = count_all
) -> Alignment | None:
    """Return the alignment of this step's gradient with the running mean of earlier gradients, over all parameters that
    this rank counts. `means` is the key of the mean in the optimizer's state, or a RunningMean. Return None if there is
    no mean or no gradient. The cosine is NaN if one of them is 0. Call this before `optimizer.step`. Clipping does not
    change the cosine."""
    gradients, moments = [], []
    for _, parameters in counted_groups(optimizer, is_counted):
        for parameter in parameters:
            if isinstance(means, RunningMean):
                moment = means.get(parameter)
            else:
                moment = optimizer.state.get(parameter, {}).get(means)
            if parameter.grad is not None and moment is not None:
                gradients.append(local(parameter.grad))
                moments.append(local(moment))
    if not gradients:
        return None
    pieces = [piece for pair in zip(gradients, moments, strict=True) for piece in update_norm.split_tensors(*pair)]
    dot = update_norm.widen(torch.stack([_dot(*piece) for piece in pieces])).sum()
    return Alignment(dot, *(cast("torch.Tensor", update_norm.norm_of(tensors)) for tensors in (gradients, moments)))


def _dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the dot product in float32 or better."""
    if first.dtype == second.dtype and first.dtype in (torch.float32, torch.float64):
        return torch.dot(first.reshape(-1), second.reshape(-1))
    return (first * second).sum(dtype=torch.float32)


def _nan_unless(has_stepped: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Return the change, or NaN without a step. On CUDA, the flag is not read, because this would wait for it."""
    if has_stepped.is_cuda:
        return torch.where(has_stepped, change, torch.nan)
    return change if has_stepped else torch.full_like(change, torch.nan)


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


class RunningMean:
    """An exponential moving average of the gradients, for optimizers without one."""

    def __init__(self, is_counted: IsCounted = count_all) -> None:
        self._is_counted = is_counted
        self._means: dict[torch.nn.Parameter, torch.Tensor] = {}

    def get(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the mean gradient of the parameter, or None if there is none yet."""
        return self._means.get(parameter)

    @torch.no_grad()
    def add(self, optimizer: Any) -> None:
        """Add the gradients that the next step uses. Change nothing if a gradient scaler skips the step."""
        found_inf = getattr(optimizer, "found_inf", None)
        for parameter in update_norm.trained_parameters(optimizer, self._is_counted):
            if parameter.grad is None:
                continue
            gradient, mean = local(parameter.grad), self._means.get(parameter)
            if mean is None:
                mean = self._means[parameter] = torch.zeros_like(gradient)
            if isinstance(found_inf, torch.Tensor):
                gradient = torch.where(found_inf.to(gradient.device) > 0, mean, gradient)
            mean.lerp_(gradient, 1 - MEAN_DECAY)

    def forget(self) -> None:
        self._means.clear()
