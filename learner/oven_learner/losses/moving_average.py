"""A moving average of the policy's weights, used as a slow teacher."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MovingAverage(nn.Module):
    """θ' ← (1 − rate)·θ' + rate·θ over a model's trainable parameters, as float32 buffers.

    For a model with an adapter only the adapter is copied. Memory: 4 bytes per trainable parameter.
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name in self._names:
            self.register_buffer(_key(name), model.get_parameter(name).detach().float().clone())
        self.register_buffer("follows", torch.tensor(False))

    @property
    def following(self) -> bool:
        """Whether it is following the model. Checkpoints keep this flag, so that a resumed average continues."""
        return bool(self.get_buffer("follows"))

    def stop(self) -> None:
        """Stop following; the next use starts afresh."""
        self.get_buffer("follows").fill_(False)

    @torch.no_grad()
    def restart(self, model: nn.Module) -> None:
        """Copy the model as it is now, and follow it from here on."""
        self.get_buffer("follows").fill_(True)
        for name in self._names:
            self.get_buffer(_key(name)).copy_(model.get_parameter(name))

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Take one step towards the model, if following."""
        if not self.following:
            return
        for name in self._names:
            own = self.get_buffer(_key(name))
            own.lerp_(model.get_parameter(name).detach().to(own), self.rate)

    def weights(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the weights by the model's names and in its dtypes, for torch.func.functional_call."""
        return {name: self.get_buffer(_key(name)).to(model.get_parameter(name)) for name in self._names}


def _key(name: str) -> str:
    """Return the buffer's name: it must not contain a dot."""
    return name.replace(".", "/")
