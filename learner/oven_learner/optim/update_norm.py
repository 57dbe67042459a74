"""The norm of an optimizer step, computed from Adam's state without a copy of the weights.

Let t be the number of steps, c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ and λ = rate × decoupled decay. A step changes the weights w to

    w' = (1 − λ) w − u,   u = rate · √c₂/c₁ · m / (√v + ε √c₂)

(Kingma & Ba 2015, arXiv 1412.6980, section 2; Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2). Therefore
w − w' = (u + λ w') / (1 − λ), which can be computed from the state after the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from oven_learner.optim.sharding import IsCounted, count_all, counted_groups, local

CHUNK = 2**24
"""Maximum number of elements per computation on an accelerator, to limit the extra memory."""
CPU_CHUNK = 2**16
"""Maximum number of elements per computation on a CPU. Such buffers stay in its cache. Torch adds the squares of a
tensor in float32 there, so the norm of 16 million elements at once would have a relative error of 6e-4, not 2e-7."""

P = TypeVar("P", bound=tuple[Any, ...])
Piece = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any, Any]
"""A part of a parameter: its weights, first moment, second moment, ε √c₂ and √c₂/c₁."""


def is_supported(optimizer: Any) -> bool:
    """Whether the optimizer's steps follow the formula above. Torch's Adam and AdamW do, but not their subclasses."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not any(p.is_complex() for p in parameters)


def step_count(optimizer: Any) -> torch.Tensor | None:
    """Return the step count of the first parameter with a gradient, as a copy, or None without a gradient. A skipped
    step does not change the count."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                steps: torch.Tensor | None = optimizer.state.get(parameter, {}).get("step")
                return torch.zeros(()) if steps is None else steps.clone()
    return None


def trained_parameters(optimizer: Any, is_counted: IsCounted = count_all) -> list[torch.nn.Parameter]:
    """Return the parameters that the optimizer trains, without those of which this rank has no elements."""
    return [
        parameter
        for _, parameters in counted_groups(optimizer, is_counted)
        for parameter in parameters
        if parameter.requires_grad and local(parameter).numel()
    ]


@torch.no_grad()
def weight_norm(optimizer: Any, is_counted: IsCounted = count_all) -> torch.Tensor | None:
    """Return the norm of all trained weights that this rank counts, on their device, in one pass."""
    return norm_of([local(parameter) for parameter in trained_parameters(optimizer, is_counted)])


@torch.no_grad()
def norm_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the norm of all tensors together, on their device, or None without any."""
    pieces = [piece for tensor in tensors for (piece,) in split_tensors(tensor)]
    return _combine_norms(_compute_norms(pieces)) if pieces else None


class CopiesBeforeStep:
    """Copies of the weights before a step, for optimizers whose state does not determine the norm of the step."""

    def __init__(self, is_counted: IsCounted = count_all) -> None:
        self._is_counted = is_counted
        self._copies: dict[torch.nn.Parameter, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, optimizer: Any) -> None:
        """Copy the current weights."""
        for parameter in trained_parameters(optimizer, self._is_counted):
            if parameter in self._copies:
                self._copies[parameter].copy_(local(parameter))
            else:
                self._copies[parameter] = local(parameter).clone()

    @torch.no_grad()
    def distance(self, optimizer: Any) -> torch.Tensor | None:
        """Return the norm of the difference between the weights and their copies, or None without copies."""
        parameters = trained_parameters(optimizer, self._is_counted)
        pairs = [(local(parameter), self._copies[parameter]) for parameter in parameters if parameter in self._copies]
        if not pairs:
            return None
        norms: list[torch.Tensor] = []
        for batch in batches([piece for pair in pairs for piece in split_tensors(*pair)]):
            weights, copies = (list(side) for side in zip(*batch, strict=True))
            norms += _compute_norms(torch._foreach_sub(weights, copies))
        return _combine_norms(norms)


@torch.no_grad()
def update_norm(optimizer: Any, is_counted: IsCounted = count_all) -> torch.Tensor | None:
    """Return the norm of w − w' in the last step, before rounding to the weights' precision, on their device, of the
    weights that this rank counts. Return None without any gradient. Call this after `optimizer.step` and before
    gradients are cleared, because parameters without a gradient are skipped. It makes eight passes over the weights, or
    eleven with decay, and needs memory for two chunks."""
    groups = counted_groups(optimizer, is_counted)
    norms = [norm for group, parameters in groups for norm in _compute_piece_norms(optimizer, group, parameters)]
    return _combine_norms(norms) if norms else None


def _compute_piece_norms(
    optimizer: Any, group: dict[str, Any], parameters: list[torch.nn.Parameter]
) -> Iterator[torch.Tensor]:
    """Yield the norm of the update of each piece of these parameters of the group."""
    is_decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    rate = float(group["lr"])
    decay = float(group["weight_decay"]) if is_decoupled else 0.0
    shrinkage = rate * decay  # λ in the formula above
    for batch in batches(list(_split_into_pieces(optimizer, group, parameters))):
        weights, first, second, epsilons, corrections = (list(column) for column in zip(*batch, strict=True))
        roots = torch._foreach_sqrt(second)
        torch._foreach_add_(roots, epsilons)
        if shrinkage:  # (1 − λ)/λ · (w − w') = w' + u/λ, in fewer passes than u + λ w'
            torch._foreach_mul_(roots, [decay / correction for correction in corrections])
            norms = _compute_norms(torch._foreach_addcdiv(weights, first, roots))
            yield from torch._foreach_mul(norms, shrinkage / (1 - shrinkage))
        else:
            norms = _compute_norms(torch._foreach_div(first, roots))
            yield from torch._foreach_mul(norms, [rate * correction for correction in corrections])


def _split_into_pieces(optimizer: Any, group: dict[str, Any], parameters: list[torch.nn.Parameter]) -> Iterator[Piece]:
    """Yield those of the parameters that the step updated, in pieces."""
    updated = [
        parameter
        for parameter in parameters
        if parameter.grad is not None and local(parameter).numel() and "exp_avg" in optimizer.state.get(parameter, {})
    ]
    if not updated:
        return
    steps = torch.stack([local(optimizer.state[parameter]["step"]) for parameter in updated])
    steps = (steps if steps.is_cuda else steps.cpu()).double()
    beta1, beta2 = map(float, group["betas"])
    root = (1 - beta2**steps).sqrt()
    epsilons = _to_scalars(float(group["eps"]) * root)
    corrections = _to_scalars(root / (1 - beta1**steps))
    second_key = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    for parameter, epsilon, correction in zip(updated, epsilons, corrections, strict=True):
        state = optimizer.state[parameter]
        tensors = (local(tensor) for tensor in (parameter, state["exp_avg"], state[second_key]))
        for weights, first, second in split_tensors(*tensors):
            yield weights, first, second, epsilon, correction


def _to_scalars(numbers: torch.Tensor) -> Sequence[Any]:
    """Return the numbers as floats. On CUDA, return tensors, because reading them would wait for the device. Fused and
    capturable optimizers count their steps there."""
    return numbers.unbind() if numbers.is_cuda else numbers.tolist()


def split_tensors(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Split tensors of the same shape into flat parts of at most a chunk each. Smaller tensors are returned whole."""
    if tensors[0].numel() <= _chunk(tensors[0]):
        return iter([tensors])
    return zip(*(torch.split(tensor.reshape(-1), _chunk(tensor)) for tensor in tensors), strict=True)


def batches(pieces: Sequence[P]) -> Iterator[Sequence[P]]:
    """Yield the pieces in batches of at most a chunk of elements together. The first entry of a piece is a tensor."""
    start = total = 0
    for index, piece in enumerate(pieces):
        size = piece[0].numel()
        if total and total + size > _chunk(piece[0]):
            yield pieces[start:index]
            start, total = index, 0
        total += size
    if pieces:
        yield pieces[start:]


def _chunk(tensor: torch.Tensor) -> int:
    return CPU_CHUNK if tensor.device.type == "cpu" else CHUNK


def _compute_norms(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the norm of each tensor, in float32 or better."""
    has_float64 = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch._foreach_norm(list(tensors), dtype=torch.float64 if has_float64 else torch.float32)


def _combine_norms(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all tensors together, given the norm of each."""
    norm: torch.Tensor = torch.linalg.vector_norm(widen(torch.stack(list(norms))))
    return norm


def widen(scalars: torch.Tensor) -> torch.Tensor:
    """Convert a few numbers to float64 before they are added, on devices that support it."""
    return scalars if scalars.device.type == "mps" else scalars.double()
