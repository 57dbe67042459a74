"""How far an optimizer step has moved the weights, read off what Adam keeps: no copy of the weights is made.

With t steps, c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ and λ = rate × decoupled decay, a step takes the weights w to

    w' = (1 − λ) w − u,   u = rate · √c₂/c₁ · m / (√v + ε √c₂)

(Kingma & Ba 2015, arXiv 1412.6980, section 2; Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2), so that
w − w' = (u + λ w') / (1 − λ): all of it is in the state after the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

CHUNK = 2**24
"""Elements that are computed at a time: that takes memory that training may not have to spare."""

Piece = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any, Any]
"""Weights, first and second moment, ε √c₂ and √c₂/c₁ of a part of a parameter."""


def known(optimizer: Any) -> bool:
    """Whether its steps are the above: torch's own Adam and AdamW, and none that is made from them."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not any(p.is_complex() for p in parameters)


def count(optimizer: Any) -> torch.Tensor | None:
    """Steps of one parameter that has a gradient, copied: it stays where a step is skipped. None: no gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                steps: torch.Tensor | None = optimizer.state.get(parameter, {}).get("step")
                return torch.zeros(()) if steps is None else steps.clone()
    return None


def trained(optimizer: Any) -> list[torch.nn.Parameter]:
    """The weights that it moves."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.numel()]


@torch.no_grad()
def weight_norm(optimizer: Any) -> torch.Tensor | None:
    """Norm of all weights that are trained, as one vector; on their device. One pass over them."""
    weights = trained(optimizer)
    return _norm(_norms(weights)) if weights else None


class Copies:
    """The weights of before a step, for optimizers whose state does not say how long the step was."""

    def __init__(self) -> None:
        self._before: dict[torch.nn.Parameter, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, optimizer: Any) -> None:
        for parameter in trained(optimizer):
            if parameter in self._before:
                self._before[parameter].copy_(parameter.detach())
            else:
                self._before[parameter] = parameter.detach().clone()

    @torch.no_grad()
    def distance(self, optimizer: Any) -> torch.Tensor | None:
        """Norm of how far the weights are from the copies now; None where there are none."""
        pairs = [(p.detach(), self._before[p]) for p in trained(optimizer) if p in self._before]
        if not pairs:
            return None
        norms: list[torch.Tensor] = []
        for part in slices([one.numel() for one, _ in pairs]):
            now, before = (list(side) for side in zip(*pairs[part], strict=True))
            norms += _norms(torch._foreach_sub(now, before))
        return _norm(norms)


@torch.no_grad()
def update_norm(optimizer: Any) -> torch.Tensor | None:
    """Norm of w − w' of the step just made, before it was rounded to the weights' precision; on their device.

    Called after `optimizer.step` and before gradients are dropped: what has none was not moved. Eight passes over the
    weights, eleven with decay, in memory for 2 × CHUNK elements. None where nothing has a gradient.
    """
    norms = [norm for group in optimizer.param_groups for norm in _moves(optimizer, group)]
    return _norm(norms) if norms else None


def _moves(optimizer: Any, group: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The norm of each piece's move."""
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    rate, decay = float(group["lr"]), float(group["weight_decay"]) if decoupled else 0.0
    shrunk = rate * decay
    for part in _parts(_pieces(optimizer, group)):
        weights, first, second, margins, corrections = (list(side) for side in zip(*part, strict=True))
        roots = torch._foreach_sqrt(second)
        torch._foreach_add_(roots, margins)
        if shrunk:  # (1 − λ)/λ · (w − w') = w' + u/λ, in fewer passes than u + λ w'
            torch._foreach_mul_(roots, [decay / correction for correction in corrections])
            norms = _norms(torch._foreach_addcdiv(weights, first, roots))
            yield from torch._foreach_mul(norms, shrunk / (1 - shrunk))
        else:
            norms = _norms(torch._foreach_div(first, roots))
            yield from torch._foreach_mul(norms, [rate * correction for correction in corrections])


def _pieces(optimizer: Any, group: dict[str, Any]) -> Iterator[Piece]:
    """Of the group's parameters that the step moved, each cut along its first axis where it is larger than CHUNK."""
    moved = [p for p in group["params"] if p.grad is not None and p.numel() and "exp_avg" in optimizer.state.get(p, {})]
    if not moved:
        return
    steps = torch.stack([optimizer.state[parameter]["step"] for parameter in moved])
    steps = (steps if steps.is_cuda else steps.cpu()).double()
    beta1, beta2 = map(float, group["betas"])
    root = (1 - beta2**steps).sqrt()
    margins = _scalars(float(group["eps"]) * root)
    corrections = _scalars(root / (1 - beta1**steps))
    second = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    for parameter, margin, correction in zip(moved, margins, corrections, strict=True):
        state = optimizer.state[parameter]
        for weights, moment, square in _cut(parameter.detach(), state["exp_avg"], state[second]):
            yield weights, moment, square, margin, correction


def _scalars(numbers: torch.Tensor) -> Sequence[Any]:
    """On CUDA they stay there (fused and capturable optimizers count there): reading them would wait for the device."""
    return numbers.unbind() if numbers.is_cuda else numbers.tolist()


def _cut(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Of one shape, into parts of at most CHUNK elements, or of one entry along the first axis."""
    size = tensors[0].numel()
    if size <= CHUNK:
        return iter([tensors])
    rows = max(1, CHUNK * len(tensors[0]) // size)
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


def _parts(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    part: list[Piece] = []
    held = 0
    for piece in pieces:
        if part and held + piece[0].numel() > CHUNK:
            yield part
            part, held = [], 0
        part.append(piece)
        held += piece[0].numel()
    if part:
        yield part


def slices(sizes: list[int]) -> Iterator[slice]:
    """Of at most CHUNK elements together; a larger tensor stands alone."""
    start = held = 0
    for index, size in enumerate(sizes):
        if held and held + size > CHUNK:
            yield slice(start, index)
            start, held = index, 0
        held += size
    yield slice(start, len(sizes))


def _norms(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Each one's, in float32 at least."""
    double = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch._foreach_norm(list(tensors), dtype=torch.float64 if double else torch.float32)


def _norm(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return whole
