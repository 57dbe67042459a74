"""Preferences that are made on the spot: two answers of the reference to a prompt, and which of them a person who looks
at the digits would rather have."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import LEVELS, PAD, Prompts, draw, held_out
from oven_bench.gym.sorting.two_layer_policy import Policy

TEMPERATURE = 1.3
"""Of the two answers: warmer than the policy's own, so that few pairs are alike."""
SURE = 12.0
"""How sure a preference is: the scale of the Bradley-Terry model, over the difference of two answers' worth."""
GAUGED, ANSWERS = 128, 3
"""Held-out pairs behind the run's own evaluation, and sampled answers to each prompt behind the score."""


class Pairs(NamedTuple):
    digits: Tensor  # int64 [B, PROMPT]
    chosen: Tensor  # int64 [B, ANSWER]
    rejected: Tensor  # int64 [B, ANSWER]


def worth(prompts: Prompts, answers: Tensor) -> Tensor:
    """The share of places with the right token, END among them: float32 [B], 0 to 1."""
    counted = (prompts.answers != PAD) | (answers != PAD)
    return ((answers == prompts.answers) & counted).sum(1) / counted.sum(1)


def preferred(prompts: Prompts, reference: Policy, draws: torch.Generator, sure: float = SURE) -> Pairs:
    """Which of two answers is preferred is drawn: the better one, the more probably the better it is."""
    one, other = (reference.sample(prompts.digits, TEMPERATURE, draws) for _ in range(2))
    chance = (sure * (worth(prompts, one) - worth(prompts, other))).sigmoid()
    first = (torch.rand(len(chance), generator=draws) < chance).unsqueeze(1)
    return Pairs(prompts.digits, torch.where(first, one, other), torch.where(first, other, one))


def batch(count: int, reference: Policy, seed: int, cursor: int) -> Pairs:
    """A function of its arguments; all levels alike."""
    draws = generator("pairs", seed, cursor)
    return preferred(draw(count, dict.fromkeys(LEVELS, 1.0), draws), reference, draws)


@cache
def gauged() -> Prompts:
    """Every other one of the held-out prompts, which no training pair has."""
    return _every_other(0)


@cache
def judged() -> Prompts:
    """The rest of them: no run is steered by what it is judged on."""
    return _every_other(1)


def held_out_pairs(reference: Policy) -> Pairs:
    """On the gauged prompts, and without the noise of a person's mood: the better answer is preferred, and pairs of
    equals are left out."""
    draws = generator("held-out pairs")
    prompts = gauged().repeated(3)
    prompts = _rows(prompts, torch.randperm(len(prompts.digits), generator=draws))
    one, other = (reference.sample(prompts.digits, TEMPERATURE, draws) for _ in range(2))
    gap = worth(prompts, one) - worth(prompts, other)
    kept = gap.nonzero().flatten()[:GAUGED]
    one, other, first = one[kept], other[kept], (gap[kept] > 0).unsqueeze(1)
    return Pairs(prompts.digits[kept], torch.where(first, one, other), torch.where(first, other, one))


def answers_worth(policy: Policy) -> float:
    """Of answers that it samples to the judged prompts, mean, 0 to 1."""
    prompts = judged().repeated(ANSWERS)
    return float(worth(prompts, policy.sample(prompts.digits, 1.0, generator("judged answers"))).mean())


def _every_other(first: int) -> Prompts:
    prompts = held_out()
    return _rows(prompts, torch.arange(first, len(prompts.digits), 2))


def _rows(prompts: Prompts, rows: Tensor) -> Prompts:
    return Prompts(prompts.digits[rows], prompts.levels[rows], prompts.answers[rows])
