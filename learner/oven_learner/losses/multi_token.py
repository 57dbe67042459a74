"""`channel.mtp`: multi-token prediction, the token after the next one, by its own head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.text_trainer import HIDDEN, IGNORED

WIDTH = 2
"""The head's inner width, in widths of the model: it then has a third of a transformer layer's weights."""
AFTER = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change their logits behind the output layer (Gemma, Cohere, Granite)."""
SPREAD = 0.02
"""Standard deviation of the head's first weights: what transformers initialises Llama's and GPT-2's with."""


class Head(nn.Module):
    """h + W₂ silu(W₁ norm(h)), of hidden states (…, H). W₂ begins at 0: the head begins as the model's own."""

    def __init__(self, width: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)  # its own: training draws what it would without the head
        up = torch.randn(WIDTH * width, width, generator=generator) * SPREAD
        self.scale = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.up = nn.Parameter(up.to(device, dtype))
        self.down = nn.Parameter(torch.zeros(width, WIDTH * width, device=device, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """Of the same shape, for the model's output layer."""
        normed = nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.scale, 1e-6)
        return hidden + silu(normed @ self.up.T) @ self.down.T


class MultiToken(Channel):
    """Negative log-likelihood per token of the token after the next one (Gloeckle et al. 2024, arXiv 2404.19737, eq. 2,
    with n = 2): its own head reads the model's last hidden states, and the model's output layer, which both heads
    share, makes logits of what it returns.

    The paper's head is a transformer layer before the last norm; this one is a residual block of two matrices behind it
    (its appendix B compares other heads, down to linear ones): any language model of transformers has a place for that.
    The model that is saved is without it: it helps training alone. It is a part of checkpoints (`channels.pt`).

    Raises ConfigError for a model without an output layer, or one that changes its logits behind it, and for several
    processes: the head's gradients are not averaged over them.
    """

    name = "mtp"
    reads = "hidden"
    unit = "nats per token, of the one after the next"

    def __init__(self, weight: float = 0.0, *, maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        self._head: Head | None = None

    def bind(self, trainer: Any) -> None:
        """Makes the head, from its own generator. Raises ConfigError as the class says."""
        super().bind(trainer)
        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                f"channel.mtp trains a head in one process, and there are {trainer.accelerator.num_processes}; leave "
                "it out, or train in one"
            )
        output = self._output(trainer.model)
        if output is None or getattr(output, "weight", None) is None:
            raise ConfigError(
                f"channel.mtp: {type(trainer.model).__name__} has no output layer that makes logits of hidden states; "
                "train a causal language model, or leave the channel out"
            )
        changed = [name for name in AFTER if getattr(trainer.model.config, name, None) not in (None, 1, 1.0)]
        if changed:
            raise ConfigError(
                f"channel.mtp: {type(trainer.model).__name__} changes its logits behind the output layer "
                f"({changed[0]} = {getattr(trainer.model.config, changed[0])}), which the second head would lack; "
                "leave the channel out"
            )
        weight = output.weight  # (V, H)
        self._head = Head(weight.shape[1], trainer.args.seed, weight.device, weight.dtype)

    @property
    def module(self) -> nn.Module | None:
        """The head."""
        return self._head

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """The negative log-likelihood, summed over the labels that count, and their number."""
        assert self._head is not None
        hidden, labels = inputs[HIDDEN][:, :-2], inputs["labels"][:, 2:]  # (B, T - 2, H), (B, T - 2)
        logits = self._output(model)(self._head(hidden))  # (B, T - 2, V)
        total = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return Tally(total, (labels != IGNORED).sum())

    def _output(self, model: Any) -> Any:
        return self._trainer.accelerator.unwrap_model(model).get_output_embeddings()
