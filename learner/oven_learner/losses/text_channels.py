"""The channels `channel.mtp` (multi-token prediction) and `channel.kg` (tokens weighted by scores, for example from a
knowledge graph), for language models that train on plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from oven_core.errors import ConfigError
from oven_learner.losses.loss_channel import Channel, TermSum
from oven_learner.losses.text_trainer import HIDDEN, IGNORED, LOGITS

WIDTH_FACTOR = 2
"""Inner width of the head divided by the model's width. The head then has a third of a transformer layer's weights."""
LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Model settings that change logits after the output layer (Gemma, Cohere, Granite)."""
INITIAL_STD = 0.02
"""Standard deviation of the head's initial weights, the same as for Llama and GPT-2 in transformers."""


class Head(nn.Module):
    """The head that predicts the token after the next one. It maps hidden states h (…, H) to h + W₂ silu(W₁ norm(h)),
    as input for the model's output layer. W₂ is initially 0, so both heads make the same predictions at first."""

    def __init__(self, width: int, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        # A separate generator keeps the random numbers of training unchanged.
        up = torch.randn(WIDTH_FACTOR * width, width, generator=torch.Generator().manual_seed(seed)) * INITIAL_STD
        self.scale = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.up = nn.Parameter(up.to(device, dtype))
        self.down = nn.Parameter(torch.zeros(width, WIDTH_FACTOR * width, device=device, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states of the same shape as `hidden`, for the model's output layer."""
        normed = nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.scale, 1e-6)
        return hidden + silu(normed @ self.up.T) @ self.down.T


class MultiToken(Channel):
    """Negative log-likelihood per token of the token after the next one (Gloeckle et al. 2024, arXiv 2404.19737, eq. 2,
    with n = 2). A second head reads the model's last hidden states. Both heads share the model's output layer. The
    paper's head is a transformer layer before the last norm. This one is a residual block of two matrices after it,
    which fits any transformers language model. Appendix B of the paper compares other heads, including linear ones. The
    head is used only for training. Saved models omit it, and checkpoints contain it (`channels.pt`). Raises ConfigError
    for a model without an output layer, for a model that changes its logits after this layer, and for several
    processes, because the head's gradients are not averaged across ranks."""

    name = "mtp"
    input_kind = "hidden"
    unit = "nats per token, for the token after the next one"
    _head: Head | None = None

    def bind(self, trainer: Any) -> None:
        """Create the head. Raises ConfigError for the cases listed in the class."""
        super().bind(trainer)
        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                f"channel.mtp supports one process, but there are {trainer.accelerator.num_processes}; omit the "
                "channel, or train in one process"
            )
        model_class, output = type(trainer.model).__name__, self._find_output_layer(trainer.model)
        if output is None or getattr(output, "weight", None) is None:
            raise ConfigError(
                f"channel.mtp: {model_class} has no output layer from hidden states to logits; train a causal language "
                "model, or omit the channel"
            )
        for name in LOGIT_SETTINGS:
            value = getattr(trainer.model.config, name, None)
            if value not in (None, 1):
                raise ConfigError(
                    f"channel.mtp: {model_class} changes its logits after the output layer ({name} = {value}), but the "
                    "second head does not; omit the channel"
                )
        weight = output.weight  # (V, H)
        self._head = Head(weight.shape[1], trainer.args.seed, weight.device, weight.dtype)

    @property
    def module(self) -> nn.Module | None:
        """The head."""
        return self._head

    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the negative log-likelihood summed over the labels that count, and the number of these labels."""
        assert self._head is not None
        hidden, labels = inputs[HIDDEN][:, :-2], inputs["labels"][:, 2:]  # (B, T - 2, H), (B, T - 2)
        logits = self._find_output_layer(model)(self._head(hidden))  # (B, T - 2, V)
        total = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return TermSum(total, (labels != IGNORED).sum())

    def _find_output_layer(self, model: Any) -> Any:
        return self._trainer.accelerator.unwrap_model(model).get_output_embeddings()


class TokenWeighted(Channel):
    """Negative log-likelihood per token, weighted by a score for each token. A token's score is divided by the mean
    score of the micro-batch, so the weights have mean 1. With channel weight λ, a token with relative score s has a
    total weight of 1 + λ·s in the loss. `scores` maps token ids to scores of 0 or above. Missing tokens have the score
    0. A micro-batch without any scored token adds nothing. Raises ConfigError if no score is above 0, and in `bind` for
    a token outside the vocabulary."""

    name = "kg"
    input_kind = "logits"
    unit = "nats per token, weighted by the prior"

    def __init__(self, scores: Mapping[int, float], weight: float = 0.0, *, maximum: float = 1.0) -> None:
        super().__init__(weight, maximum=maximum)
        for token, score in scores.items():
            if not (math.isfinite(score) and score >= 0):
                raise ConfigError(
                    f"channel.kg: token {token} has the score {score:g}; expected a finite score of 0 or above"
                )
        if not any(scores.values()):
            raise ConfigError("channel.kg: no token has a score above 0; pass at least one")
        self.scores = dict(scores)
        """Scores by token id."""
        self._score_by_token = torch.zeros(0)

    def bind(self, trainer: Any) -> None:
        """Check that all scored tokens are in the model's vocabulary. Raises ConfigError if one is not."""
        super().bind(trainer)
        rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
        for token in self.scores:
            if not 0 <= token < rows:
                raise ConfigError(
                    f"channel.kg: token {token} has a score, but the model's vocabulary has {rows:,} tokens; use "
                    "scores for this vocabulary"
                )
        self._score_by_token = torch.zeros(rows)  # (V)
        self._score_by_token[list(self.scores)] = torch.tensor(list(self.scores.values()))

    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the weighted negative log-likelihood summed over the labels that count, and their number."""
        logits, labels = inputs[LOGITS][:, :-1], inputs["labels"][:, 1:]  # (B, T - 1, V), (B, T - 1)
        self._score_by_token = self._score_by_token.to(logits.device)
        counts = labels != IGNORED
        nats = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none").view(labels.shape)
        scores = self._score_by_token[labels.clamp(min=0)] * counts  # (B, T - 1)
        total_score, number = scores.sum(), counts.sum()
        weights = scores * (number / total_score.clamp(min=torch.finfo(total_score.dtype).tiny))
        return TermSum((nats * weights).sum(), number * (total_score > 0))
