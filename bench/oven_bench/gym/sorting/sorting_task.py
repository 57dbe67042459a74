"""The sorting task as tensors: prompts of three levels, their right answers, and the committee of three judges.

The rules and the choice of held-out prompts are the GRPO recipe's own (oven_recipes.grpo.sorting_task).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from oven_bench.gym.seeded_draws import generator
from oven_learner.rewards.aggregation import aggregate, mean_agreement
from oven_recipes.grpo.sorting_task import Example, draw_pool

LENGTHS = (3, 4, 5)
LEVELS = tuple(f"level_{length}" for length in LENGTHS)
END, PAD = 10, 11
"""Tokens in addition to the digits: the end of an answer, and the filling of a row."""
SYMBOLS = 12
PROMPT, ANSWER = max(LENGTHS), max(LENGTHS) + 2
"""Widths of a row. An answer has room for its end and for one token too many."""
TRAINED, HELD_OUT = 2000, 250
"""Prompts of a level, at most: for training, and for an evaluation."""
JUDGES = ("exact", "format", "critic")
CAUTION = 0.5
"""λ of the rule `cautious` (oven_learner.rewards.aggregation), with its default in a committee."""
MISJUDGED = 0.05
"""Share of completions that the critic gets wrong."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one step."""

    digits: Tensor  # int64 [P, PROMPT], padded on the right with PAD
    levels: Tensor  # int64 [P], the index in LEVELS
    answers: Tensor  # int64 [P, ANSWER]: the right answer, END, then PAD

    def repeated(self, times: int) -> Prompts:
        """Each prompt several times in a row, so that a group's rows are adjacent."""
        return Prompts(*(part.repeat_interleave(times, 0) for part in (self.digits, self.levels, self.answers)))


def padded(text: str, width: int, *, end: bool = False) -> list[int]:
    """Digits as a row of this width, with END if `end` is set."""
    row = [int(digit) for digit in text] + [END] * end
    return row + [PAD] * (width - len(row))


def as_prompts(examples: Sequence[Example]) -> Prompts:
    """Prompts with their right answers. In `S5203=` the digits are between the first and the last sign."""
    return Prompts(
        torch.tensor([padded(example.prompt[1:-1], PROMPT) for example in examples]),
        torch.tensor([len(example.answer) - LENGTHS[0] for example in examples]),
        torch.tensor([padded(example.answer, ANSWER, end=True) for example in examples]),
    )


@cache
def pools() -> tuple[Prompts, ...]:
    """The training prompts of each level, the same for every seed."""
    rng = random.Random("gym prompts")
    return tuple(as_prompts(draw_pool(length, TRAINED, rng)) for length in LENGTHS)


@cache
def held_out() -> Prompts:
    """The held-out prompts of all levels. None of them is in `pools`."""
    rng = random.Random("gym held out")
    return as_prompts([row for length in LENGTHS for row in draw_pool(length, HELD_OUT, rng, evaluation=True)])


def draw(count: int, mixture: Mapping[str, float], generator: torch.Generator) -> Prompts:
    """Draw `count` prompts, uniformly within each level. A level's count differs from its share of the mixture by at
    most one (systematic sampling), so that metrics by level have little noise."""
    edges = torch.tensor([mixture[level] for level in LEVELS], dtype=torch.float64).cumsum(0)
    points = (torch.arange(count) + torch.rand(1, generator=generator)) / count * edges[-1]
    levels = torch.searchsorted(edges, points.double(), right=True).clamp(max=len(LEVELS) - 1)  # [count]
    picks = torch.rand(count, generator=generator)
    parts = []
    for level, prompts in enumerate(pools()):
        rows = (picks[levels == level] * len(prompts.digits)).long()
        parts.append((prompts.digits[rows], prompts.levels[rows], prompts.answers[rows]))
    return Prompts(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of one step. The rows of a group are adjacent."""

    prompts: Prompts  # of every row, so B of them
    tokens: Tensor  # int64 [B, ANSWER], PAD behind END
    mask: Tensor  # bool [B, ANSWER]: tokens that were sampled
    group: int
    """Rows per prompt."""

    @property
    def lengths(self) -> Tensor:
        """Sampled tokens of each row, including END: int64 [B]."""
        return self.mask.sum(1)


def scores(completions: Completions, seed: int, cursor: int) -> dict[str, Tensor]:
    """Each judge's scores, float32 [B] from 0 to 1. Seed and data position decide where the critic errs."""
    return {
        "exact": exact(completions),
        "format": form(completions),
        "critic": critic(completions, generator("critic", seed, cursor)),
    }


def exact(completions: Completions) -> Tensor:
    """1 where every token is right."""
    return (completions.tokens == completions.prompts.answers).all(1).float()


def form(completions: Completions) -> Tensor:
    """1 for an answer that ends and has as many digits as the prompt."""
    digits = (completions.prompts.digits != PAD).sum(1)
    ended = (completions.tokens == END).any(1)
    return (ended & (completions.lengths == digits + 1)).float()


def critic(completions: Completions, draws: torch.Generator) -> Tensor:
    """The share of right tokens, and its opposite for the few completions that the critic misjudges."""
    right = completions.prompts.answers
    counts = right != PAD
    share = ((completions.tokens == right) & counts).sum(1) / counts.sum(1)
    wrong = torch.rand(len(share), generator=draws) < MISJUDGED
    return torch.where(wrong, 1 - share, share)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The committee's rewards of one step."""

    rewards: Tensor  # float32 [groups, group]; NaN in a group without any score
    scored: Tensor  # bool [groups]
    metrics: dict[str, float]


def judged(judge_scores: Mapping[str, Tensor], weights: Mapping[str, float], group: int) -> Verdict:
    """One reward per completion, by the product's own aggregation.

    A judge without a score for one completion of a group abstains from the whole group, and the others take over its
    weight. A group without any judge that has weight gets no rewards.
    """
    rows = {judge: values.view(-1, group).tolist() for judge, values in judge_scores.items()}
    groups = len(next(iter(rows.values())))
    rewards: list[Sequence[float]] = []
    scored, agreements, abstentions = [], [], 0
    for index in range(groups):
        present = {judge: row[index] for judge, row in rows.items() if not any(map(math.isnan, row[index]))}
        abstentions += len(rows) - len(present)
        aggregated = aggregate(present, weights, quorum=1, rule="cautious", caution=CAUTION)
        scored.append(aggregated is not None)
        rewards.append([math.nan] * group if aggregated is None else aggregated)
        voting = {judge: row for judge, row in present.items() if weights[judge] > 0}
        if (correlation := mean_agreement(voting)) is not None:
            agreements.append(correlation)
    metrics = {"committee/abstentions": float(abstentions)}
    if agreements:
        metrics["committee/agreement"] = math.fsum(agreements) / len(agreements)
    for judge, values in judge_scores.items():
        present_values = values[~values.isnan()]
        if len(present_values):
            metrics[f"rewards/{judge}/mean"] = float(present_values.mean())
    return Verdict(torch.tensor(rewards), torch.tensor(scored), metrics)
