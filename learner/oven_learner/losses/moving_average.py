"""The policy's moving average: a teacher that follows it slowly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MovingAverage(nn.Module):
    """θ' ← (1 − rate)·θ' + rate·θ of what trains of a model, as float32 buffers: of a model below an adapter only the
    adapter is copied. 4 bytes for each parameter that trains."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name in self._names:
            self.register_buffer(_key(name), model.get_parameter(name).detach().float().clone())
        self.register_buffer("follows", torch.tensor(False))

    @property
    def following(self) -> bool:
        """Whether it has begun to follow the model. A checkpoint keeps it, so that a resumed one continues."""
        return bool(self.get_buffer("follows"))

    def stop(self) -> None:
        """It begins anew when it is asked for again."""
        self.get_buffer("follows").fill_(False)

    @torch.no_grad()
    def restart(self, model: nn.Module) -> None:
        """It is the model as it is now, and follows it from here on."""
        self.get_buffer("follows").fill_(True)
        for name in self._names:
            self.get_buffer(_key(name)).copy_(model.get_parameter(name))

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """One step towards the model, if it follows it."""
        if not self.following:
            return
        for name in self._names:
            own = self.get_buffer(_key(name))
            own.lerp_(model.get_parameter(name).detach().to(own), self.rate)

    def weights(self, model: nn.Module) -> Mapping[str, Tensor]:
        """By the model's names and in its types, for torch.func.functional_call."""
        return {name: self.get_buffer(_key(name)).to(model.get_parameter(name)) for name in self._names}


def _key(name: str) -> str:
    """A buffer's name has no dot in it."""
    return name.replace(".", "/")
