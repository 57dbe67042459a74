"""Many held-out examples of each usual task: the population that a trial's few examples stand for."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch.nn import functional as F

from oven_bench.gym.fault import Trainee
from oven_bench.gym.sorting.sorting_prompts import LENGTHS, Prompts, as_prompts
from oven_bench.gym.tasks.grpo.trainee import Grpo
from oven_bench.gym.tasks.pretraining.corpus import corpus, pair
from oven_recipes.grpo.task import pool

PART = 64
"""Rows at a time: small enough for the cache."""
PROMPTS = 800
"""Of a level at most; the shortest has fewer."""


@torch.no_grad()
def rows(trainee: Trainee) -> list[float]:
    """Nats per byte of each held-out row, those that `eval/loss` is measured on and those that the score is."""
    held_out = torch.cat([corpus().gauged, corpus().judged])
    inputs, targets = pair(held_out)
    losses: list[float] = []
    for some, wanted in zip(torch.split(inputs, PART), torch.split(targets, PART), strict=True):
        losses += F.cross_entropy(trainee.model(some).transpose(1, 2), wanted, reduction="none").mean(1).tolist()
    return losses


@torch.no_grad()
def prompts(trainee: Trainee) -> list[float]:
    """Of each held-out prompt, whether it is sorted, greedily: 0 or 1."""
    asked = _prompts()
    right = (cast(Grpo, trainee).policy.sample(asked.digits, 1.0, None) == asked.answers).all(1)
    return [float(one) for one in right]


@cache
def _prompts() -> Prompts:
    drawn = random.Random("a population of prompts")
    return as_prompts([one for length in LENGTHS for one in pool(length, PROMPTS, drawn, evaluation=True)])


POPULATIONS: dict[str, Callable[[Trainee], list[float]]] = {"pretraining": rows, "grpo": prompts}
