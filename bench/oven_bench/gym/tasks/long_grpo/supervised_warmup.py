"""The supervised warm-up that stands in for pre-training: answers of mixed habits, few of them the right one."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.tasks.long_grpo.digit_sequences import PAD, PROMPT, TURNS, draw, filled, right
from oven_bench.gym.tasks.long_grpo.policy import Policy

BATCH, STEPS, RATE = 128, 130, 1e-2
HABITS = 4
"""The right answer, only forwards, one turn too few, one too many."""


@cache
@torch.enable_grad()
def warm_weights(seed: int) -> dict[str, Tensor]:
    """A policy's weights after the warm-up; not to be changed in place. torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator("long policy", seed).initial_seed())
        policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE, betas=(0.9, 0.95))
    for step in range(STEPS):
        draws = generator("long warm-up", seed, step)
        digits = draw(BATCH, draws)
        habits = torch.randint(HABITS, (BATCH,), generator=draws)
        wanted = torch.stack([habit(digits) for habit in _HABITS])[habits, torch.arange(BATCH)]
        loss = nll_loss(policy(digits, wanted).transpose(1, 2), wanted, ignore_index=PAD)
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 20) * (1 - 0.95 * step / STEPS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: weight.detach().clone() for name, weight in policy.state_dict().items()}


def _forwards(digits: Tensor) -> Tensor:
    return filled(digits.repeat(1, TURNS))


def _shorter(digits: Tensor) -> Tensor:
    return filled(right(digits)[:, : PROMPT * (TURNS - 1)])


def _longer(digits: Tensor) -> Tensor:
    return filled(torch.cat((right(digits)[:, : PROMPT * TURNS], digits), 1))


_HABITS = (right, _forwards, _shorter, _longer)
