"""The task: a prompt's four digits forwards, backwards, forwards, backwards: 16 digits, and the end."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from oven_bench.gym.seeded_draws import generator

PROMPT, TURNS = 4, 4
RIGHT = PROMPT * TURNS
"""Digits of a right answer."""
END, PAD = 10, 11
"""Beside the digits: the token that ends an answer, and what fills a row up."""
TOKENS = END + 1
"""What can be answered."""
ANSWER = RIGHT + 4
"""Width of a row (`max_completion_length`): the right answer, its end, and three tokens of room to be wrong by."""
GAUGED, JUDGED = 48, 1024
"""Held-out prompts behind the trainer's evaluation, and behind the score."""


@cache
def _split() -> tuple[Tensor, Tensor, Tensor]:
    """All 10,000 prompts, each once: to train on, gauged, judged."""
    numbers = torch.randperm(10**PROMPT, generator=generator("long prompts"))
    digits = torch.stack([numbers // 10**place % 10 for place in range(PROMPT)], 1)
    return digits[GAUGED + JUDGED :], digits[:GAUGED], digits[GAUGED : GAUGED + JUDGED]


def draw(count: int, draws: torch.Generator) -> Tensor:
    """Training prompts: int64 [count, PROMPT]."""
    train = _split()[0]
    return train[torch.randint(len(train), (count,), generator=draws)]


def gauged() -> Tensor:
    return _split()[1]


def judged() -> Tensor:
    return _split()[2]


def right(digits: Tensor) -> Tensor:
    """int64 [B, PROMPT] → the right answers, int64 [B, ANSWER]."""
    return filled(torch.cat([digits if turn % 2 == 0 else digits.flip(1) for turn in range(TURNS)], 1))


def filled(answer: Tensor) -> Tensor:
    """Digits int64 [B, at most ANSWER] with an end behind them, where there is room, and PAD: int64 [B, ANSWER]."""
    rows = torch.full((len(answer), ANSWER + 1), PAD)
    rows[:, : answer.shape[1]] = answer
    rows[:, answer.shape[1]] = END
    return rows[:, :ANSWER]
