"""`channel.mtp`: multi-token prediction. A second head predicts the token after the next one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.text_trainer import HIDDEN, IGNORED

WIDTH = 2
"""The head's inner width in multiples of the model's width. It then has a third of a transformer layer's weights."""
AFTER = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Model settings that change logits after the output layer (Gemma, Cohere, Granite)."""
SPREAD = 0.02
"""Standard deviation of the head's initial weights, as transformers initialises Llama and GPT-2."""


class Head(nn.Module):
    """The second head: h + W₂ silu(W₁ norm(h)) for hidden states (…, H).

    W₂ starts at 0, so the head starts as the model's own.
    """

    def __init__(self, width: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        # A separate generator, so that training's random numbers do not change.
        generator = torch.Generator().manual_seed(seed)
        up = torch.randn(WIDTH * width, width, generator=generator) * SPREAD
        self.scale = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.up = nn.Parameter(up.to(device, dtype))
        self.down = nn.Parameter(torch.zeros(width, WIDTH * width, device=device, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states of the same shape, for the model's output layer."""
        normed = nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.scale, 1e-6)
        return hidden + silu(normed @ self.up.T) @ self.down.T


class MultiToken(Channel):
    """Negative log-likelihood per token of the token after the next one (Gloeckle et al. 2024, arXiv 2404.19737, eq. 2,
    with n = 2). A second head reads the model's last hidden states. Both heads share the model's output layer.

    The paper's head is a transformer layer before the last norm. This one is a residual block of two matrices after it,
    which fits any transformers language model; the paper's appendix B compares other heads, down to linear ones. The
    head only helps training: saved models omit it, and checkpoints keep it (`channels.pt`).

    Raises ConfigError for a model without an output layer, for one that changes its logits after it, and for several
    processes, because the head's gradients are not averaged across ranks.
    """

    name = "mtp"
    reads = "hidden"
    unit = "nats per token, of the one after the next"

    def __init__(self, weight: float = 0.0, *, maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        self._head: Head | None = None

    def bind(self, trainer: Any) -> None:
        """Create the head. Raises ConfigError for the cases listed in the class."""
        super().bind(trainer)
        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                f"channel.mtp supports one process, and there are {trainer.accelerator.num_processes}; omit it, "
                "or train in one process"
            )
        output = self._output(trainer.model)
        if output is None or getattr(output, "weight", None) is None:
            raise ConfigError(
                f"channel.mtp: {type(trainer.model).__name__} has no output layer from hidden states to logits; "
                "train a causal language model, or omit the channel"
            )
        changed = [name for name in AFTER if getattr(trainer.model.config, name, None) not in (None, 1, 1.0)]
        if changed:
            raise ConfigError(
                f"channel.mtp: {type(trainer.model).__name__} changes its logits after the output layer "
                f"({changed[0]} = {getattr(trainer.model.config, changed[0])}), which the second head does not do; "
                "omit the channel"
            )
        weight = output.weight  # (V, H)
        self._head = Head(weight.shape[1], trainer.args.seed, weight.device, weight.dtype)

    @property
    def module(self) -> nn.Module | None:
        """The head."""
        return self._head

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the negative log-likelihood, summed over the labels that count, and their number."""
        assert self._head is not None
        hidden, labels = inputs[HIDDEN][:, :-2], inputs["labels"][:, 2:]  # (B, T - 2, H), (B, T - 2)
        logits = self._output(model)(self._head(hidden))  # (B, T - 2, V)
        total = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return Tally(total, (labels != IGNORED).sum())

    def _output(self, model: Any) -> Any:
        return self._trainer.accelerator.unwrap_model(model).get_output_embeddings()
