"""The knob `train.quantisation`: train through weights rounded to 8 or 4 bits. It can be switched during a run.

    actuators = oven.Actuators()
    quantisation.announce(actuators, FakeQuantisation(model))
    oven.attach(trainer, actuators=actuators)

Quantisation-aware training (Jacob et al. 2018, arXiv 1712.05877): the forward pass sees rounded weights, the optimizer
moves the full ones, and the gradient passes the rounding unchanged (the straight-through estimator; Bengio et al. 2013,
arXiv 1308.3432). Rounding is torch's own, `fake_quantize_per_channel_affine`.

Quantisation changes the class of the layers and not their parameters. `torch.nn.utils.parametrize` would change the
name and order of each weight while it is on. Checkpoints, copies for rollback and readers of `named_parameters()` would
have to handle that. Here the parameters, their names and the optimizer's moments stay the same objects, checkpoints
contain a plain model, and switching it off leaves no trace.
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
"""Number of weights that share a scale with 4 bits, as in llama.cpp's Q4_0 and torchao's CPU default. With 8 bits, all
weights of an output share one scale."""


def fake_quantised(weight: Tensor, bits: int) -> Tensor:
    """Round a weight (out, in) symmetrically to 2^bits − 1 levels, with the gradient of the weight itself.

    The scale is that of the largest weight of an output, or with 4 bits of each GROUP of its inputs if GROUP divides
    them. No weight is clipped. A weight that is not finite makes its group NaN.
    """
    grouped = bits == BITS["int4"] and weight.shape[1] % GROUP == 0
    rows = weight.reshape(-1, GROUP) if grouped else weight
    most = 2 ** (bits - 1) - 1
    scale = rows.detach().abs().amax(1).float() / most  # (groups)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)  # a group of zeros
    zero = torch.zeros(len(rows), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -most, most).view_as(weight)


class QuantisedLinear(nn.Linear):
    """A Linear that rounds its weight to `oven_bits` in the forward pass."""

    oven_bits: int

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, fake_quantised(self.weight, self.oven_bits), self.bias)


class QuantisedConv1D(Conv1D):  # type: ignore[misc, unused-ignore]
    oven_bits: int

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, fake_quantised(self.weight.T, self.oven_bits), self.bias)


QUANTISED: Final[dict[type[nn.Module], type[nn.Module]]] = {nn.Linear: QuantisedLinear, Conv1D: QuantisedConv1D}
"""Layer class → its quantised class. Subclasses may compute something else and are not changed."""
FULL: Final = {on: off for off, on in QUANTISED.items()}


class FakeQuantisation:
    """Quantises the linear layers of a model whose weights train, except its output layer.

    The quantised models of transformers also leave the output layer as it is; it often shares its weight with the
    embedding. Raises ConfigError for a model without such layers.
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
        """Return the present choice: `none`, `int8` or `int4`."""
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


def announce(actuators: Actuators, quantisation: FakeQuantisation) -> None:
    """Register the choice. The loss is that of the rounded weights, so that only held-out data can judge a change."""
    choices = (NONE, *BITS)
    actuators.choice(
        NAME, quantisation.read, quantisation.write, choices, unit="the linear layers' weights", moves_own_metric=True
    )
