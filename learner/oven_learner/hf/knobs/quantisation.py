"""`train.quantisation`: training through weights that are rounded to 8 or 4 bits, switched while it continues.

    actuators = oven.Actuators()
    quantisation.announce(actuators, FakeQuantisation(model))
    oven.attach(trainer, actuators=actuators)

Quantisation-aware training (Jacob et al. 2018, arXiv 1712.05877): the forward pass sees rounded weights, the optimizer
moves the full ones, and the gradient passes the rounding unchanged (the straight-through estimator; Bengio et al. 2013,
arXiv 1308.3432). Rounding is torch's own, `fake_quantize_per_channel_affine`.

It is a property of the layers' class and not of their parameters: `torch.nn.utils.parametrize` would give each weight
another name and another place in the order while it is on, which checkpoints, copies for rollback and what reads
`named_parameters()` would all have to know. So the parameters, their names and the optimizer's moments are the same
objects throughout, what is saved is a plain model, and off is as if it had never been on.
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
"""Choice → bits of a weight."""
GROUP: Final = 32
"""Weights that share a scale in 4 bits: llama.cpp's Q4_0 and torchao's default for a CPU. In 8 bits an output's share
one."""


def fake_quantised(weight: Tensor, bits: int) -> Tensor:
    """A weight (out, in) rounded symmetrically to 2^bits − 1 levels, with the gradient of the weight itself. The scale
    is the largest weight's of an output; in 4 bits of GROUP inputs to one, where they divide the inputs. No weight is
    cut off. What is not finite makes its group NaN."""
    grouped = bits == BITS["int4"] and weight.shape[1] % GROUP == 0
    rows = weight.reshape(-1, GROUP) if grouped else weight
    most = 2 ** (bits - 1) - 1
    scale = rows.detach().abs().amax(1).float() / most  # (groups)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)  # a group of zeros
    zero = torch.zeros(len(rows), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -most, most).view_as(weight)


class QuantisedLinear(nn.Linear):
    """A Linear whose forward pass rounds its weight to `oven_bits`."""

    oven_bits: int

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, fake_quantised(self.weight, self.oven_bits), self.bias)


class QuantisedConv1D(Conv1D):  # type: ignore[misc, unused-ignore]
    """The same for GPT-2's layer, whose weight is (in, out)."""

    oven_bits: int

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, fake_quantised(self.weight.T, self.oven_bits), self.bias)


QUANTISED: Final[dict[type[nn.Module], type[nn.Module]]] = {nn.Linear: QuantisedLinear, Conv1D: QuantisedConv1D}
"""What a layer is, off and on. Classes derived from these may compute otherwise, and are left alone."""
FULL: Final = {on: off for off, on in QUANTISED.items()}


class FakeQuantisation:
    """Of a model's linear layers whose weights train, but for its output layer: transformers' quantised models keep
    that as it is, too, and it often shares its weight with the embedding.

    Raises ConfigError for a model without such a layer.
    """

    def __init__(self, model: nn.Module) -> None:
        output = getattr(model, "get_output_embeddings", lambda: None)()
        self.layers: list[Any] = [
            module
            for module in model.modules()
            if type(module) in (*QUANTISED, *FULL) and module is not output and module.weight.requires_grad
        ]
        if not self.layers:
            raise ConfigError(f"{type(model).__name__} has no linear layer whose weight trains; {NAME} needs one")

    def read(self) -> str:
        """`none`, `int8` or `int4`, as the layers are now."""
        bits = getattr(self.layers[0], "oven_bits", None)
        return next((name for name, of in BITS.items() if of == bits), NONE)

    @property
    def bits(self) -> int:
        """Bits of a weight in the forward pass, whether it is rounded or not."""
        return BITS.get(self.read()) or int(torch.finfo(self.layers[0].weight.dtype).bits)

    def write(self, choice: str) -> None:
        """Acts on the next forward pass. The generators, the weights and the optimizer are not touched."""
        for layer in self.layers:
            vars(layer).pop("oven_bits", None)
            plain = FULL.get(type(layer), type(layer))
            layer.__class__ = plain if choice == NONE else QUANTISED[plain]
            if choice != NONE:
                vars(layer)["oven_bits"] = BITS[choice]


def announce(actuators: Actuators, quantisation: FakeQuantisation) -> None:
    """As a choice; the loss is that of the rounded weights, so that only held-out data can judge a change."""
    choices = (NONE, *BITS)
    actuators.choice(
        NAME, quantisation.read, quantisation.write, choices, unit="the linear layers' weights", moves_own_metric=True
    )
