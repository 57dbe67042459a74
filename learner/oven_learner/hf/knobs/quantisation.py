"""The knob `train.quantisation`, which rounds the weights to 8 or 4 bits during training.

It can be changed during a run:

    actuators = oven.Actuators()
    quantisation.register_knob(actuators, FakeQuantisation(model))
    oven.attach(trainer, actuators=actuators)

This is quantisation-aware training (Jacob et al. 2018, arXiv 1712.05877). The forward pass sees rounded weights, and
the optimizer updates the full-precision weights. The gradient passes through the rounding unchanged (the
straight-through estimator; Bengio et al. 2013, arXiv 1308.3432).

Quantisation changes the class of the layers, but not their parameters. `torch.nn.utils.parametrize` would change the
name and order of each weight. Checkpoints, copies for rollback and readers of `named_parameters()` would have to handle
this. A new class leaves the parameters, their names and the optimizer's moments unchanged. Checkpoints contain a plain
model, and switching quantisation off restores the original layers.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators

NAME: Final = "train.quantisation"
NONE: Final = "none"
BITS: Final = {"int8": 8, "int4": 4}
"""Choice → number of bits per weight."""
GROUP_SIZE: Final = 32
"""In 4-bit mode, number of weights that share a scale, as in llama.cpp's Q4_0 and torchao's CPU default. In 8-bit mode,
all weights of an output share one scale."""


def fake_quantise(weight: Tensor, bits: int) -> Tensor:
    """Round a weight (out, in) symmetrically to 2^bits − 1 levels. The gradient passes through unchanged. The largest
    weight of each output sets the scale. With 4 bits, each group of GROUP_SIZE inputs has its own scale, if GROUP_SIZE
    divides their number. No weight is clipped. A weight that is not finite makes its group NaN."""
    grouped = bits == BITS["int4"] and weight.shape[1] % GROUP_SIZE == 0
    rows = weight.reshape(-1, GROUP_SIZE) if grouped else weight
    max_level = 2 ** (bits - 1) - 1
    scale = rows.detach().abs().amax(1).float() / max_level  # (groups)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)  # a group of zeros
    zero = torch.zeros(len(rows), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -max_level, max_level).view_as(weight)


class QuantisedLinear(nn.Linear):
    """A Linear that rounds its weight to `oven_bits` in the forward pass."""

    oven_bits: int

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, fake_quantise(self.weight, self.oven_bits), self.bias)


class QuantisedConv1D(Conv1D):  # type: ignore[misc, unused-ignore]
    """A Conv1D that rounds its weight to `oven_bits` in the forward pass."""

    oven_bits: int

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, fake_quantise(self.weight.T, self.oven_bits), self.bias)


QUANTISED: Final[dict[type[nn.Module], type[nn.Module]]] = {nn.Linear: QuantisedLinear, Conv1D: QuantisedConv1D}
"""Layer class → its quantised class. Subclasses are not changed, because they may compute something else."""
FULL: Final = {quantised: full for full, quantised in QUANTISED.items()}
"""Quantised class → its layer class."""


class FakeQuantisation:
    """Quantises the trainable linear layers of a model, except its output layer. Quantised models in transformers do
    not quantise the output layer either, because it often shares its weight with the embedding. Raises ConfigError for
    a model without such layers."""

    def __init__(self, model: nn.Module) -> None:
        output = getattr(model, "get_output_embeddings", lambda: None)()
        self.layers: list[Any] = [
            module
            for module in model.modules()
            if type(module) in (*QUANTISED, *FULL) and module is not output and module.weight.requires_grad
        ]
        if not self.layers:
            raise ConfigError(f"{type(model).__name__} has no trainable linear layer, so {NAME} cannot be used")

    def read(self) -> str:
        """Return the current choice: `none`, `int8` or `int4`."""
        bits = getattr(self.layers[0], "oven_bits", None)
        return next((name for name, choice_bits in BITS.items() if choice_bits == bits), NONE)

    @property
    def bits(self) -> int:
        return BITS.get(self.read()) or int(torch.finfo(self.layers[0].weight.dtype).bits)

    def write(self, choice: str) -> None:
        """Switch quantisation from the next forward pass on. Random generators, weights and optimizer do not change."""
        for layer in self.layers:
            vars(layer).pop("oven_bits", None)
            plain = FULL.get(type(layer), type(layer))
            layer.__class__ = plain if choice == NONE else QUANTISED[plain]
            if choice != NONE:
                vars(layer)["oven_bits"] = BITS[choice]


def register_knob(actuators: Actuators, quantisation: FakeQuantisation) -> None:
    """Register `train.quantisation`. A change shifts the training loss itself, so only held-out data can judge it."""
    actuators.choice(NAME, quantisation.read, quantisation.write, (NONE, *BITS), moves_own_metric=True)
