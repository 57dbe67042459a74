"""The policy: a network of two layers that says the next token from the prompt and all that was answered so far."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, PAD, PROMPT, SYMBOLS

TOKENS = END + 1
"""What can be answered: the digits and END."""


class Policy(nn.Module):
    """Autoregressive: every place of prompt and answer has embeddings of its own, which are summed; no recurrence, so
    that the log-probabilities of whole answers take one pass. 24,000 parameters."""

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.places = nn.Embedding((PROMPT + ANSWER - 1) * SYMBOLS, hidden)
        self.position = nn.Parameter(torch.randn(ANSWER, hidden) * 0.3)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, TOKENS)
        nn.init.normal_(self.places.weight, std=0.3)
        rows = torch.arange(PROMPT + ANSWER - 1) * SYMBOLS  # the first row of `places` of each place
        self._asked, self._said = rows[:PROMPT], rows[PROMPT:]

    def forward(self, digits: Tensor, answers: Tensor) -> Tensor:
        """Log-probabilities [N, TOKENS] at each of the N tokens of `answers` [B, ANSWER] that is not PAD, row by row,
        given what stands before it; digits [B, PROMPT]."""
        asked = self.places(digits + self._asked).sum(1, keepdim=True)  # [B, 1, H]
        said = self.places(answers[:, :-1] + self._said).cumsum(1)  # [B, ANSWER - 1, H]
        summed = asked + nn.functional.pad(said, (0, 0, 1, 0)) + self.position  # [B, ANSWER, H]
        return self._logits(summed[answers != PAD]).log_softmax(-1)

    def _logits(self, summed: Tensor) -> Tensor:
        hidden = torch.relu(summed)
        out: Tensor = self.head(hidden + torch.relu(self.middle(hidden)))
        return out

    def embed_prompt(self, digits: Tensor) -> Tensor:
        """What the prompts add up to: [B, H], of digits [B, PROMPT]."""
        summed: Tensor = self.places(digits + self._asked).sum(1)
        return summed

    def next_logits(self, summed: Tensor, place: int) -> Tensor:
        """Logits [B, TOKENS] of the token at a place of the answer."""
        return self._logits(summed + self.position[place])

    def append(self, summed: Tensor, token: Tensor, place: int) -> Tensor:
        """`summed` with the token [B] that was said at a place, which is not the last."""
        added: Tensor = self.places(token + self._said[place])
        return summed + added

    @torch.no_grad()
    def sample(self, digits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
        """Answers [B, ANSWER], filled up with PAD behind END; greedy without a generator.

        By the inverse of the cumulative distribution, which has an answer for NaN as well: a policy that is broken
        answers nonsense, and does not raise.
        """
        count = len(digits)
        summed = self.embed_prompt(digits)
        answers = torch.full((count, ANSWER), PAD)
        ended = torch.zeros(count, dtype=torch.bool)
        draws = None if generator is None else torch.rand(ANSWER, count, 1, generator=generator)
        for place in range(ANSWER):
            logits = self.next_logits(summed, place)
            if draws is None:
                token = logits.argmax(-1)
            else:
                cumulative = (logits / temperature).softmax(-1).cumsum(-1)
                token = (draws[place] * cumulative[:, -1:] >= cumulative).sum(-1).clamp(max=END)
            token = token.masked_fill(ended, PAD)
            answers[:, place] = token
            ended = ended | (token == END)
            if place < ANSWER - 1:
                summed = self.append(summed, token, place)
        return answers
