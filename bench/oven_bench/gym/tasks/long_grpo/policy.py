"""The policy: what is said next, from the prompt, the place, and the digits that were said last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oven_bench.gym.tasks.long_grpo.digit_sequences import ANSWER, END, PAD, PROMPT, TOKENS

SEEN = 4
"""Tokens of the answer that it looks back on."""
SYMBOLS = PAD + 1


class Policy(nn.Module):
    """Autoregressive over a window, without recurrence, so that whole answers take one pass. 33,000 parameters."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.asked = nn.Embedding(PROMPT * SYMBOLS, hidden)
        self.said = nn.Embedding(SEEN * SYMBOLS, hidden)
        self.place = nn.Parameter(torch.randn(ANSWER, hidden) * 0.3)
        self.middle, self.head = nn.Linear(hidden, hidden), nn.Linear(hidden, TOKENS)
        nn.init.normal_(self.asked.weight, std=0.3)
        nn.init.normal_(self.said.weight, std=0.3)

    def forward(self, digits: Tensor, answers: Tensor) -> Tensor:
        """Log-probabilities [B, ANSWER, TOKENS] of each token of `answers` [B, ANSWER], given what stands before it;
        digits [B, PROMPT]. Behind the end they mean nothing."""
        before = nn.functional.pad(answers, (SEEN, 0), value=PAD)
        seen = torch.stack([before[:, back : back + ANSWER] for back in range(SEEN)], 2)  # [B, ANSWER, SEEN]
        summed = self._prompt(digits).unsqueeze(1) + self._window(seen) + self.place
        return self._logits(summed).log_softmax(-1)

    def _prompt(self, digits: Tensor) -> Tensor:
        summed: Tensor = self.asked(digits + SYMBOLS * torch.arange(PROMPT)).sum(-2)
        return summed

    def _window(self, seen: Tensor) -> Tensor:
        summed: Tensor = self.said(seen + SYMBOLS * torch.arange(SEEN)).sum(-2)
        return summed

    def _logits(self, summed: Tensor) -> Tensor:
        hidden = torch.relu(summed)
        out: Tensor = self.head(hidden + torch.relu(self.middle(hidden)))
        return out

    @torch.no_grad()
    def sample(self, digits: Tensor, temperature: float, draws: torch.Generator | None) -> Tensor:
        """Answers [B, ANSWER], filled up with PAD behind END; greedy without a generator. By the inverse of the
        cumulative distribution, which has an answer for NaN as well."""
        count, prompt = len(digits), self._prompt(digits)
        answers = torch.full((count, SEEN + ANSWER), PAD)
        ended = torch.zeros(count, dtype=torch.bool)
        random = None if draws is None else torch.rand(ANSWER, count, 1, generator=draws)
        for place in range(ANSWER):
            logits = self._logits(prompt + self._window(answers[:, place : place + SEEN]) + self.place[place])
            if random is None:
                token = logits.argmax(-1)
            else:
                cumulative = (logits / temperature).softmax(-1).cumsum(-1)
                token = (random[place] * cumulative[:, -1:] >= cumulative).sum(-1).clamp(max=END)
            answers[:, SEEN + place] = token.masked_fill(ended, PAD)
            ended = ended | (token == END)
        return answers[:, SEEN:]
