"""Gauges and copies of sharded models, compared on each rank with those of the same model that is not sharded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tests.support.attached import llama
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, ShardingStrategy, fully_shard

from oven_learner.optim import snapshot
from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.optim.optimizer_gauges import OptimizerGauges
from oven_learner.optim.sharding import find_sharding, local
from oven_learner.optim.step_gauges import Clip, gradient_norm

ROWS = 4
"""Rows per micro-batch. Every rank gets the same rows, so that its weights can equal those of the unsharded model."""
MIN_VALUE = 0.01
"""Errors of smaller gauges are relative to this: a cosine near 0 is the difference of large sums in float32."""
Optimizer = Callable[[list[Any]], torch.optim.Optimizer]


class Net(torch.nn.Module):
    """Layers whose sizes no number of ranks divides, and a scalar that most ranks have no part of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(5, width), torch.nn.Linear(width, 3, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.leave(torch.tanh(self.enter(x))) * self.scale
        return result


@dataclass(frozen=True)
class Shape:
    """A model and an optimizer, with the parameters in two groups."""

    build: Callable[[], torch.nn.Module]
    optimizer: Optimizer
    micro_batches: int = 1
    clip: float | None = None
    frozen: str = ""
    """Beginning of the names of the frozen parameters."""
    offload: bool = False


def adamw(groups: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


SHAPES = {
    "uneven": Shape(lambda: Net(7), adamw),
    "llama": Shape(llama, adamw, micro_batches=2, clip=0.05),
    "frozen": Shape(lambda: Net(33), adamw, frozen="enter.bias", offload=True),
    "momentum": Shape(lambda: Net(16), lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9), micro_batches=3),
    "own mean": Shape(lambda: Net(64), lambda groups: torch.optim.RMSprop(groups, lr=0.001), clip=0.1),
}


def fsdp2(model: torch.nn.Module, shape: Shape) -> torch.nn.Module:
    policy: Any = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if shape.offload else {}
    for module in _layers(model):
        fully_shard(module, **policy)
    fully_shard(model, **policy)
    return model


def hybrid(model: torch.nn.Module, shape: Shape) -> torch.nn.Module:
    """FSDP2 on two groups of ranks, each with the whole model."""
    mesh = init_device_mesh("cpu", (2, distributed.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    for module in _layers(model):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp1(model: torch.nn.Module, shape: Shape) -> torch.nn.Module:
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def fsdp1_replicated(model: torch.nn.Module, shape: Shape) -> torch.nn.Module:
    strategy = ShardingStrategy.NO_SHARD
    return FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu"), sharding_strategy=strategy
    )


SHARDINGS = {"fsdp2": fsdp2, "hybrid": hybrid, "fsdp1": fsdp1, "fsdp1 replicated": fsdp1_replicated}


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    layers = getattr(getattr(model, "model", None), "layers", ())
    return [*layers] or [module for module in model.children() if isinstance(module, torch.nn.Linear)]


class Training:
    """A training with gauges, of a sharded model or not."""

    def __init__(self, shape: Shape, sharding: str = "") -> None:
        torch.manual_seed(5)
        self.model = shape.build()
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not (shape.frozen and name.startswith(shape.frozen)))
        if sharding:
            self.model = SHARDINGS[sharding](self.model, shape)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [{"params": trained[::2]}, {"params": trained[1::2], "weight_decay": 0.1}]
        self.shape, self.optimizer = shape, shape.optimizer(groups)
        layout = find_sharding(self.model, self.optimizer) if sharding else None
        self.gauges = OptimizerGauges(self.optimizer, self.model, publishes=True, sharding=layout)
        self._norm_is_combined = layout is None
        self._clip = Clip(shape.clip, self.model, layout) if shape.clip else None
        self._counts = layout.is_counted if layout is not None else lambda _: True

    def step(self, data: torch.Generator) -> dict[str, float]:
        """Train a step, and return its gauges and the norm of its gradients."""
        for _ in range(self.shape.micro_batches):
            (self._loss(data) / self.shape.micro_batches).backward()  # type: ignore[no-untyped-call]
        norm = self._clip.apply(self.optimizer) if self._clip is not None else None
        own_norm = gradient_norm(self.optimizer, filter(self._counts, self.model.parameters()))
        numbers = self.gauges.before_step()
        self.optimizer.step()
        numbers |= self.gauges.after_step({} if self._norm_is_combined else {"norm": own_norm})
        if self._norm_is_combined and own_norm is not None:
            numbers["norm"] = own_norm
        if norm is not None:
            numbers["norm before clipping"] = norm
        self.optimizer.zero_grad()
        return {name: float(number) for name, number in numbers.items()}

    def _loss(self, data: torch.Generator) -> torch.Tensor:
        if self.shape.build is llama:
            tokens = torch.randint(0, 16, (ROWS, 8), generator=data)
            loss: torch.Tensor = self.model(input_ids=tokens, labels=tokens).loss
            return loss
        x = torch.randn(ROWS, 5, generator=data)
        error: torch.Tensor = self.model(x) - x[:, :3].square()
        return error.square().mean()

    def bits(self) -> list[torch.Tensor]:
        """Copies of this rank's weights and of the optimizer's tensors."""
        tensors: list[torch.Tensor] = [*self.model.parameters()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return [local(tensor).clone() for tensor in tensors]


def gauge_errors(sharding: str, steps: int) -> dict[str, dict[str, float]]:
    """Return the maximum relative error of each gauge, by shape."""
    return {name: dict(_errors(shape, sharding, steps)) for name, shape in SHAPES.items()}


def _errors(shape: Shape, sharding: str, steps: int) -> Iterator[tuple[str, float]]:
    readings = []
    for training in (Training(shape), Training(shape, sharding)):
        data = torch.Generator().manual_seed(7)
        readings.append([training.step(data) for _ in range(steps)])
    names = {name for row in readings[0] for name, value in row.items() if math.isfinite(value)}
    for name in sorted(names):
        pairs = [tuple(row.get(name, math.nan) for row in rows) for rows in zip(*readings, strict=True)]
        assert all(math.isnan(whole) == math.isnan(sharded) for whole, sharded in pairs), f"{name}: {pairs}"
        yield (
            name,
            max(abs(sharded - whole) / max(abs(whole), MIN_VALUE) for whole, sharded in pairs if math.isfinite(whole)),
        )


def differences_after_rollback(steps: int, device: torch.device | None = None) -> dict[str, int]:
    """Return the number of tensors that differ between a training that continues from a state and one that returns to
    it later, by shape: at once, and after further steps on the same data."""
    counts = {}
    for name, shape in SHAPES.items():
        training = Training(shape, "fsdp2")
        copies = snapshot.LoopSnapshot(training.model, [LearningRateScale(training.optimizer)], device=device)
        first_state = copies.take()
        training_data = torch.Generator().manual_seed(1)
        for _ in range(3):
            training.step(training_data)
        state, at_copy, position = copies.take(), training.bits(), training_data.get_state()
        for _ in range(steps):
            training.step(training_data)
        ahead = training.bits()
        for _ in range(2):  # a different way, from which it returns
            training.step(torch.Generator().manual_seed(99))
        copies.restore(first_state)
        training.step(torch.Generator().manual_seed(98))
        copies.restore(state)
        back = training.bits()
        training_data.set_state(position)
        for _ in range(steps):
            training.step(training_data)
        counts[name] = _differing(at_copy, back) + _differing(ahead, training.bits())
        assert _differing(at_copy, ahead), "training changes the weights"
    return counts


def _differing(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> int:
    return sum(not torch.equal(*pair) for pair in zip(tensors, others, strict=True))
