"""The task, sorting digits, as tensors: prompts of three levels, and the answers that a verifier holds to be right.

The rules, and which prompts are held out, are the grpo recipe's own (oven_recipes.grpo.task).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from oven_recipes.grpo.task import Example, pool

LENGTHS = (3, 4, 5)
LEVELS = tuple(f"level_{length}" for length in LENGTHS)
END, PAD = 10, 11
"""Beside the digits: the token that ends an answer, and what fills a row up."""
SYMBOLS = 12
PROMPT, ANSWER = max(LENGTHS), max(LENGTHS) + 2
"""Widths of a row: the longest answer, its end, and one token of room to be wrong by."""
TRAINED, HELD_OUT = 2000, 250
"""Prompts of a level at most: those that training draws from, and those of an evaluation."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one step."""

    digits: torch.Tensor  # int64 [P, PROMPT], padded on the right with PAD
    levels: torch.Tensor  # int64 [P], the index in LEVELS
    answers: torch.Tensor  # int64 [P, ANSWER]: what the verifier holds to be right, END, then PAD

    def repeated(self, times: int) -> Prompts:
        """Each prompt so often, one after another: a group's rows lie together."""
        return Prompts(*(part.repeat_interleave(times, 0) for part in (self.digits, self.levels, self.answers)))


def padded(text: str, width: int, *, end: bool = False) -> list[int]:
    row = [int(digit) for digit in text] + [END] * end
    return row + [PAD] * (width - len(row))


def as_prompts(examples: Sequence[Example]) -> Prompts:
    """Prompts with their right answers; a prompt's digits stand between its first and last sign, `S5203=`."""
    return Prompts(
        torch.tensor([padded(one.prompt[1:-1], PROMPT) for one in examples]),
        torch.tensor([len(one.answer) - LENGTHS[0] for one in examples]),
        torch.tensor([padded(one.answer, ANSWER, end=True) for one in examples]),
    )


@cache
def pools() -> tuple[Prompts, ...]:
    """By level, what training draws from: the same for every seed."""
    rng = random.Random("gym prompts")
    return tuple(as_prompts(pool(length, TRAINED, rng)) for length in LENGTHS)


@cache
def held_out() -> Prompts:
    """Of every level HELD_OUT prompts, or as many as it has, none of which is in `pools`."""
    rng = random.Random("gym held out")
    return as_prompts([one for length in LENGTHS for one in pool(length, HELD_OUT, rng, evaluation=True)])


def draw(count: int, mixture: Mapping[str, float], generator: torch.Generator) -> Prompts:
    """`count` prompts: of each level at most one below or above its share of `mixture` (systematic sampling, which
    puts little noise into what is measured by level), and uniform within it."""
    edges = torch.tensor([mixture[level] for level in LEVELS], dtype=torch.float64).cumsum(0)
    points = (torch.arange(count) + torch.rand(1, generator=generator)) / count * edges[-1]
    levels = torch.searchsorted(edges, points.double(), right=True).clamp(max=len(LEVELS) - 1)  # [count]
    picks = torch.rand(count, generator=generator)
    rows = []
    for level, of in enumerate(pools()):
        mine = picks[levels == level]
        at = (mine * len(of.digits)).long()
        rows.append(Prompts(of.digits[at], of.levels[at], of.answers[at]))
    return Prompts(*(torch.cat(parts) for parts in zip(*((r.digits, r.levels, r.answers) for r in rows), strict=True)))
