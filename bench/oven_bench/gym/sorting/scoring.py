"""The committee: three judges of a completion, and what they make of it together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts
from oven_learner.rewards.aggregation import aggregate, agreement

JUDGES = ("exact", "format", "critic")
CAUTION = 0.5
"""λ of the rule `cautious` (rewards/aggregation/rules.py); the default that it has in a committee."""
MISJUDGED = 0.05
"""Share of completions that the critic gets wrong."""


@dataclass(frozen=True, slots=True)
class Completions:
    """What was answered in one step; the rows of a group lie together."""

    prompts: Prompts  # of every row, so B of them
    tokens: Tensor  # int64 [B, ANSWER], PAD behind END
    mask: Tensor  # bool [B, ANSWER]: a token that was sampled
    group: int
    """Rows of one prompt."""

    @property
    def lengths(self) -> Tensor:
        """Sampled tokens of each row, END among them: int64 [B]."""
        return self.mask.sum(1)


def scores(completions: Completions, seed: int, cursor: int) -> dict[str, Tensor]:
    """What each judge says, float32 [B] within 0 to 1. The critic errs by a draw of the seed and data position."""
    return {
        "exact": exact(completions),
        "format": form(completions),
        "critic": critic(completions, generator("critic", seed, cursor)),
    }


def exact(completions: Completions) -> Tensor:
    """The verifier: 1 where every token is that of its answer."""
    return (completions.tokens == completions.prompts.answers).all(1).float()


def form(completions: Completions) -> Tensor:
    """1 for an answer that ends, with as many digits as the prompt has."""
    asked = (completions.prompts.digits != PAD).sum(1)
    ended = (completions.tokens == END).any(1)
    return (ended & (completions.lengths == asked + 1)).float()


def critic(completions: Completions, draws: torch.Generator) -> Tensor:
    """Sees what is nearly right: the share of places with the right token, and the opposite of it for the few
    completions that it misjudges."""
    right = completions.prompts.answers
    counts = right != PAD
    share = ((completions.tokens == right) & counts).sum(1) / counts.sum(1)
    wrong = torch.rand(len(share), generator=draws) < MISJUDGED
    return torch.where(wrong, 1 - share, share)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The committee's word on one step."""

    rewards: Tensor  # float32 [groups, group]; NaN in a group that nobody scored
    scored: Tensor  # bool [groups]
    metrics: dict[str, float]


def judged(given: Mapping[str, Tensor], weights: Mapping[str, float], group: int) -> Verdict:
    """One reward a completion, by the committee's own rule. A judge that says nothing of one completion of a group
    abstains from all of it, and leaves its weight to the others; a group without any judge of weight has no rewards."""
    rows = {name: one.view(-1, group).tolist() for name, one in given.items()}
    groups = len(next(iter(rows.values())))
    rewards: list[Sequence[float]] = []
    scored, agreed, abstained = [], [], 0
    for index in range(groups):
        heard = {name: one[index] for name, one in rows.items() if not any(map(math.isnan, one[index]))}
        abstained += len(rows) - len(heard)
        made = aggregate(heard, weights, quorum=1, rule="cautious", caution=CAUTION)
        scored.append(made is not None)
        rewards.append([math.nan] * group if made is None else made)
        voting = {name: one for name, one in heard.items() if weights[name] > 0}
        if (correlation := agreement(voting)) is not None:
            agreed.append(correlation)
    metrics = {"committee/abstentions": float(abstained)}
    if agreed:
        metrics["committee/agreement"] = math.fsum(agreed) / len(agreed)
    for name, one in given.items():
        said = one[~one.isnan()]
        if len(said):
            metrics[f"rewards/{name}/mean"] = float(said.mean())
    return Verdict(torch.tensor(rewards), torch.tensor(scored), metrics)
