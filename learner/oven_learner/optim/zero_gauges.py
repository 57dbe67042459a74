"""Gauges of a model that DeepSpeed's ZeRO shards (stages 1 to 3), and DeepSpeed's own gradient clipping.

DeepSpeed wraps a torch optimizer. In each step, it calls the torch optimizer once per parameter group or sub-group. Its
parameters are then flat tensors with this rank's part of the weights in full precision. Only during such a call do they
have gradients, which are already unscaled and clipped. So hooks around the calls measure every part and add them up.
After the step, one all-reduce adds the sums of all ranks.

Only this module uses private names of DeepSpeed (tested with 0.19.8). A version without them has no gauges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import distributed

from oven_core.errors import reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.optim.optimizer_gauges import SUM_COUNT, OptimizerGauges
from oven_learner.optim.sharding import Sharding, count_all

log = logging.getLogger("oven.learner")

CLIP: Final = "clip_grad"
"""The norm to which DeepSpeed clips. It reads this attribute at each step. 0 means that it does not clip."""
STAGE_3_NAMES: Final = ("fp16_groups", "fp32_partitioned_groups_flat", "dp_process_group")
OFFLOAD_NAMES: Final = ("cpu_offload", "offload_optimizer")
"""Flags of stages 1 and 2, and of stage 3, for moments and weights in the host's memory."""


def zero_optimizer(optimizer: Any) -> Any:
    """Return DeepSpeed's optimizer, given the one that accelerate may have wrapped around it."""
    return optimizer.optimizer if type(optimizer).__name__ == "DeepSpeedOptimizerWrapper" else optimizer


def describe_obstacle(optimizer: Any) -> str:
    """Return the reason why the gauges of this DeepSpeed optimizer cannot be measured, or an empty string."""
    zero = zero_optimizer(optimizer)
    if not isinstance(getattr(zero, "optimizer", None), torch.optim.Optimizer):
        return f"needs ZeRO around one of torch's optimizers, but this is {type(zero).__name__}"
    if _is_stage_3(zero) and not all(hasattr(zero, name) for name in STAGE_3_NAMES):
        return f"needs DeepSpeed 0.19, because this version has no {' or no '.join(STAGE_3_NAMES)}"
    if any(getattr(zero, name, False) for name in OFFLOAD_NAMES):
        return "needs the optimizer on the device, but DeepSpeed offloads it, so measuring would slow down each step"
    group = getattr(zero, "dp_process_group", None)
    if distributed.get_world_size(group) != distributed.get_world_size():
        return "needs ZeRO over all ranks, but DeepSpeed shards within smaller groups"
    return ""


class ZeroGauges:
    """The gauges of OptimizerGauges for a DeepSpeed optimizer, with the same methods. All ranks must call them."""

    def __init__(self, optimizer: Any, model: torch.nn.Module | None) -> None:
        """`describe_obstacle` must have returned an empty string."""
        self._zero = zero_optimizer(optimizer)
        self._base: torch.optim.Optimizer = self._zero.optimizer
        self._sharding = Sharding(count_all)
        self._spans = self._stage_3_spans() if _is_stage_3(self._zero) else {}
        self._sums: torch.Tensor | None = None
        self._has_failed = False
        self._parts: dict[tuple[torch.Tensor, int], torch.Tensor] = {}
        """(Flat tensor, start) → the part of it that the gauges see. Its data are set in every step."""
        self._view: Any = object.__new__(type(self._base))  # the gauges look at its class, groups and state alone
        flat_tensors = list(self._spans) or [flat for group in self._base.param_groups for flat in group["params"]]
        self._view.param_groups = [
            {**group, "params": [] if index else flat_tensors} for index, group in enumerate(self._base.param_groups)
        ]
        self._view.state = {}
        self._gauges = OptimizerGauges(self._view, model, publishes=True, sharding=self._sharding)
        self._hooks = [
            self._base.register_step_pre_hook(lambda *_: self._before_call()),
            self._base.register_step_post_hook(lambda *_: self._after_call()),
        ]

    @property
    def unmeasured(self) -> dict[str, str]:
        """Gauge → the reason why it is not measured."""
        return self._gauges.unmeasured

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return self._gauges.metric_specs()

    def before_step(self) -> dict[str, torch.Tensor]:
        """Return nothing, because DeepSpeed has stepped within `backward`."""
        return {}

    def after_step(self) -> dict[str, torch.Tensor]:
        """Return the gauges of the last step. Return nothing if DeepSpeed has skipped it, as it does on all ranks."""
        sums, self._sums = self._sums, None
        return {} if sums is None else self._gauges.gauges_from_sums(self._sharding.sum(sums))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before_call(self) -> None:
        self._safely(self._measure_before_call)

    def _measure_before_call(self) -> None:
        self._show_parts()
        self._gauges.before_step()

    def _after_call(self) -> None:
        self._safely(self._add_sums)
        if self._has_failed:
            self._sums = torch.full((SUM_COUNT,), torch.nan)
        for part in self._parts.values():
            part.grad = None

    def _add_sums(self) -> None:
        self._show_parts()
        sums = self._gauges.shard_sums()
        self._sums = sums if self._sums is None else self._sums + sums

    def _safely(self, measure: Callable[[], object]) -> None:
        """Measure, unless that has failed before. Then this rank adds NaN to the sums."""
        if self._has_failed:
            return
        try:
            measure()
        except Exception as error:
            self._has_failed = True
            log.warning("the gauges of the optimizer are no longer measured: %s", reason(error))

    def _show_parts(self) -> None:
        """Let the gauges see the gradients, weights and moments of the current call, without padding."""
        self._view.state = {}
        self._view.param_groups = [
            {**group, "params": [part for flat in group["params"] for part in self._parts_of(flat)]}
            for group in self._base.param_groups
        ]

    def _parts_of(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        for start, stop in self._spans.get(flat, [(0, flat.numel())]):
            values = flat.detach()[start:stop]
            part = self._parts.setdefault((flat, start), values.requires_grad_())
            part.data = values  # DeepSpeed may have moved it
            part.grad = flat.grad[start:stop] if flat.grad is not None else None
            self._view.state[part] = {
                key: value[start:stop] if isinstance(value, torch.Tensor) and value.shape == flat.shape else value
                for key, value in self._base.state.get(flat, {}).items()
            }
            yield part

    def _stage_3_spans(self) -> dict[torch.Tensor, list[tuple[int, int]]]:
        """Return the ranges of each flat tensor that contain weights. Stage 3 pads every parameter to a multiple of the
        number of ranks, and the padding is uninitialized memory. The other stages pad with zeros."""
        rank = distributed.get_rank(self._zero.dp_process_group)
        spans: dict[torch.Tensor, list[tuple[int, int]]] = {}
        for group, flat in zip(self._zero.fp16_groups, self._zero.fp32_partitioned_groups_flat, strict=True):
            start, spans[flat] = 0, []
            for parameter in group:
                size = parameter.ds_tensor.ds_numel  # the same on all ranks
                count = min(max(parameter.ds_numel - rank * size, 0), size)
                if spans[flat] and spans[flat][-1][1] == start:
                    spans[flat][-1] = (spans[flat][-1][0], start + count)
                elif count:
                    spans[flat].append((start, start + count))
                start += size
        return spans


def _is_stage_3(zero: Any) -> bool:
    return type(zero).__name__ == "DeepSpeedZeroOptimizer_Stage3"
