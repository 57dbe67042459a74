"""`channel.kg`: an extra likelihood term whose tokens are weighted by the scores of a token prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.text_trainer import IGNORED, LOGITS


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
            raise ConfigError(
                "channel.kg: no token has a score above 0, so nothing is weighted; give at least one score above 0"
            )
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
                f"channel.kg: token {beyond} has a score, and the model has {rows:,} tokens; "
                "use scores of its vocabulary"
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
