"""The running mean of gradients that a gradient is compared with: the optimizer's own, or one kept beside it."""

from __future__ import annotations

from typing import Any

import torch

from oven_learner.optim import update_norm

HORIZON = (0.8, 0.95)
"""Decays for which another optimizer's buffer stands for Adam's first moment, whose usual decay is 0.9: among gradients
that are mostly noise the cosine with a mean of decay β grows as √((1 + β)/(1 − β)), and agents know it at Adam's."""
DECAY = 0.9
"""Of the mean that is kept here."""
COPY_BYTES = 128 * 1024 * 1024
"""The largest copy of the weights that is made for a gauge; there may be two: a mean, and the weights of before."""
QUANTIZED = "8bit"
"""In the names of optimizers whose state is codes and scales (bitsandbytes), not numbers."""


def names(optimizer: Any) -> set[str]:
    """Those of its class and of all that it is made from."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def kept(optimizer: Any) -> str | None:
    """Where in its state the optimizer keeps a mean of the gradients that serves; None if nowhere."""
    groups, own = optimizer.param_groups, names(optimizer)
    if own & {"SGD", "Muon"}:
        usable = all(HORIZON[0] <= group.get("momentum", 0.0) <= HORIZON[1] for group in groups)
        return "momentum_buffer" if usable else None
    if "Lion" in own or any(QUANTIZED in name for name in own):  # Lion's decay is 0.99
        return None
    return "exp_avg" if all("betas" in group for group in groups) else None


def fits(optimizer: Any) -> bool:
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
