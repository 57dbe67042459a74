"""The supervised warm-up that stands in for pre-training: mixed habits, of which GRPO has to select the right one."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import ANSWER, LENGTHS, PAD, Prompts, padded, pools
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_recipes.grpo.task import HABITS

BATCH, RAMP = 128, 20
RATE = 1e-2


@cache
@torch.enable_grad()
def warm_weights(seed: int, steps: int = 120, right: float = 0.47) -> dict[str, Tensor]:
    """A policy's weights after the warm-up, a function of the arguments; not to be changed in place.

    `right` is the share of targets that are the right answer; the others follow one of HABITS: descending, copy,
    reverse, repeat. torch's global generator is left as it was. Trains where gradients are off, too.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator("policy", seed).initial_seed())
        policy = Policy()
    # A short memory of the squared gradient: in a few hundred steps, .999 still remembers the initial weights.
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    prompts, targets = _pairs()
    for step in range(steps):
        draws = generator("warm-up", seed, step)
        rows = torch.randint(len(prompts.digits), (BATCH,), generator=draws)
        habits = (torch.rand(BATCH, generator=draws) >= right) * torch.randint(
            1, 1 + len(HABITS), (BATCH,), generator=draws
        )
        wanted = targets[habits, rows]  # [BATCH, ANSWER]
        loss = nll_loss(policy(prompts.digits[rows], wanted), wanted[wanted != PAD])
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / RAMP) * (1 - 0.95 * step / steps)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: weight.detach().clone() for name, weight in policy.state_dict().items()}


@cache
def _pairs() -> tuple[Prompts, Tensor]:
    """All training prompts, and by habit, the right one first, what it answers: int64 [1 + habits, N, ANSWER]."""
    levels = pools()
    prompts = Prompts(*(torch.cat([getattr(one, part) for one in levels]) for part in ("digits", "levels", "answers")))
    asked = [
        "".join(map(str, row[: LENGTHS[level]]))
        for row, level in zip(prompts.digits.tolist(), prompts.levels.tolist(), strict=True)
    ]
    habits = [torch.tensor([padded(habit(text), ANSWER, end=True) for text in asked]) for habit in HABITS]
    return prompts, torch.stack([prompts.answers, *habits])
