"""Channels for language models that train on plain text: `channel.mtp` and `channel.kg`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.text_trainer import HIDDEN, IGNORED, LOGITS

WIDTH = 2
"""Inner width of the head in multiples of the model's width. It then has a third of a transformer layer's weights."""
AFTER = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Model settings that change logits after the output layer (Gemma, Cohere, Granite)."""
SPREAD = 0.02
"""Standard deviation of the head's initial weights, as transformers initialises Llama and GPT-2."""


class Head(nn.Module):
    """The second head: h + W₂ silu(W₁ norm(h)) for hidden states (…, H). W₂ is initially 0, so the head starts out
    equal to the model's own."""

    def __init__(self, width: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        # A separate generator, so that training's random numbers do not change.
        up = torch.randn(WIDTH * width, width, generator=torch.Generator().manual_seed(seed)) * SPREAD
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

    Raises ConfigError for a model without an output layer, for a model that changes its logits after this layer, and
    for several processes, because the head's gradients are not averaged across ranks.
    """

    name = "mtp"
    reads = "hidden"
    unit = "nats per token, of the one after the next"
    _head: Head | None = None

    def bind(self, trainer: Any) -> None:
        """Create the head. Raises ConfigError for the cases listed in the class."""
        super().bind(trainer)
        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                f"channel.mtp supports one process, and there are {trainer.accelerator.num_processes}; omit it, "
                "or train in one process"
            )
        kind, output = type(trainer.model).__name__, self._output(trainer.model)
        if output is None or getattr(output, "weight", None) is None:
            raise ConfigError(
                f"channel.mtp: {kind} has no output layer from hidden states to logits; train a causal language model, "
                "or omit the channel"
            )
        for name in AFTER:
            if (value := getattr(trainer.model.config, name, None)) not in (None, 1, 1.0):
                raise ConfigError(
                    f"channel.mtp: {kind} changes its logits after the output layer ({name} = {value}), which the "
                    "second head does not do; omit the channel"
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


class TokenWeighted(Channel):
    """Negative log-likelihood per token. Each token is weighted by its score divided by the micro-batch's mean score,
    so the weights have mean 1. At weight λ a token of relative score s counts 1 + λ·s in the loss.

    `scores` maps token ids to scores of 0 or above. Missing tokens have the score 0. A micro-batch without any scored
    token adds nothing. Raises ConfigError if no score is above 0, and in `bind` for a token outside the vocabulary.
    """

    name = "kg"
    reads = "logits"
    unit = "nats per token, weighted by the prior"

    def __init__(self, scores: Mapping[int, float], weight: float = 0.0, *, maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        wrong = next((entry for entry in scores.items() if not (math.isfinite(entry[1]) and entry[1] >= 0)), None)
        if wrong is not None:
            raise ConfigError(f"channel.kg: token {wrong[0]} has the score {wrong[1]:g}; give finite ones, 0 or above")
        if not any(scores.values()):
            raise ConfigError("channel.kg: no token has a score above 0; give at least one")
        self.scores = dict(scores)
        """Token id → score."""
        self._by_token = torch.zeros(0)

    def bind(self, trainer: Any) -> None:
        """Check the vocabulary's size. Raises ConfigError for a scored token outside it."""
        super().bind(trainer)
        rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
        beyond = next((token for token in self.scores if not 0 <= token < rows), None)
        if beyond is not None:
            raise ConfigError(
                f"channel.kg: token {beyond} has a score, and the model has {rows:,}; use scores of its vocabulary"
            )
        self._by_token = torch.zeros(rows)  # (V)
        self._by_token[list(self.scores)] = torch.tensor(list(self.scores.values()))

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the weighted negative log-likelihood, summed over the labels that count, and their number."""
        logits, labels = inputs[LOGITS][:, :-1], inputs["labels"][:, 1:]  # (B, T - 1, V), (B, T - 1)
        self._by_token = self._by_token.to(logits.device)
        counts = labels != IGNORED
        nats = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none").view(labels.shape)
        scores = self._by_token[labels.clamp(min=0)] * counts  # (B, T - 1)
        whole, number = scores.sum(), counts.sum()
        weights = scores * (number / whole.clamp(min=torch.finfo(whole.dtype).tiny))
        return Tally((nats * weights).sum(), number * (whole > 0))
