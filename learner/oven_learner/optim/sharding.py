"""How the parameters of an optimizer are spread over the ranks, and sums over all of them.

Each rank computes its own part of a sum from the elements that it stores, and one small all-reduce adds the parts. No
parameter is gathered. If several ranks store the same elements, as under hybrid sharding, only the first of them counts
these elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from oven_learner import ranks

FSDP1 = "FullyShardedDataParallel"
"""The name of FSDP1's wrapper, whose module is slow to import."""
FSDP2_SHARDS = "FSDP2 shards it"
IsCounted = Callable[[torch.nn.Parameter], bool]
"""Whether this rank counts its elements of the parameter in sums over all ranks."""
GroupAndParameters = tuple[dict[str, Any], list[torch.nn.Parameter]]


def count_all(_: torch.nn.Parameter) -> bool:
    return True


@torch.no_grad()
def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's elements of a tensor, without a copy and detached."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def describe_sharding(model: torch.nn.Module) -> str:
    """Describe how the model is sharded, for example "FSDP2 shards it". Return an empty string if it is not."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return FSDP2_SHARDS
    wrappers = {type(module).__name__ for module in model.modules()}
    for name in (FSDP1, "DeepSpeedEngine"):
        if name in wrappers:
            return f"{name} shards it"
    return ""


def can_copy_weights(model: torch.nn.Module | None) -> bool:
    """Whether each rank can copy and restore its part of the weights by itself. FSDP1 and DeepSpeed keep the weights in
    flat buffers of their own."""
    return model is not None and describe_sharding(model) in ("", FSDP2_SHARDS)


class Sharding:
    """The sharding of one optimizer's parameters. `sum` is a collective, so all ranks must call it alike."""

    def __init__(self, is_counted: IsCounted) -> None:
        self.is_counted = is_counted

    @torch.no_grad()
    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sums of the numbers over all ranks, on their device."""
        # NCCL cannot send from the CPU, where parameters are if FSDP offloads them.
        needs_cuda = distributed.get_backend() == "nccl" and not numbers.is_cuda
        totals = numbers.to("cuda", torch.float64) if needs_cuda else numbers.to(torch.float64, copy=True)
        distributed.all_reduce(totals)
        return totals.to(numbers.device)


def find_sharding(model: torch.nn.Module | None, optimizer: Any) -> Sharding | None:
    """Return the sharding of the optimizer's parameters, or None if this rank stores all of their elements."""
    if ranks.world_size() == 1:
        return None
    if model is not None and any(type(module).__name__ == FSDP1 for module in model.modules()):
        return Sharding(_counted_under_fsdp1(model))
    if any(isinstance(parameter, DTensor) for group in optimizer.param_groups for parameter in group["params"]):
        return Sharding(_is_counted_under_fsdp2)
    return None


def counted_groups(optimizer: Any, is_counted: IsCounted = count_all) -> Iterator[GroupAndParameters]:
    """Yield each parameter group with those of its parameters that this rank counts."""
    for group in optimizer.param_groups:
        yield group, [parameter for parameter in group["params"] if is_counted(parameter)]


def _is_counted_under_fsdp2(parameter: torch.nn.Parameter) -> bool:
    """Whether this rank is the first with its elements of the parameter. A parameter that is not sharded is the same on
    every rank."""
    if not isinstance(parameter, DTensor):
        return ranks.rank() == 0
    coordinates = parameter.device_mesh.get_coordinate() or ()
    return not any(
        coordinate for coordinate, placement in zip(coordinates, parameter.placements, strict=True)
        if placement.is_replicate()
    )  # fmt: skip


def _counted_under_fsdp1(model: torch.nn.Module) -> IsCounted:
    """Return the function for FSDP1, whose parameters are plain tensors with this rank's elements. Under hybrid
    sharding, only the group of rank 0 counts them."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    is_first = ranks.rank() == 0
    replicated: set[torch.nn.Parameter] = set()
    counts_shards = True
    for module in FullyShardedDataParallel.fsdp_modules(model):
        replicated.update(getattr(module, "_ignored_params", ()))
        if module.sharding_strategy == ShardingStrategy.NO_SHARD:
            counts_shards = is_first
        else:
            counts_shards = 0 in distributed.get_process_group_ranks(module.process_group)

    def is_counted(parameter: torch.nn.Parameter) -> bool:
        return is_first if parameter in replicated else counts_shards

    return is_counted
