"""Clips that are made and not recorded, and the supervised warm-up on them that stands in for pre-training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from oven_learner.policies import DiffusionPolicy, Policy, Samples
from oven_recipes.motion.intents import INTENTS, TRAINED
from oven_recipes.motion.settings import MotionSettings
from oven_recipes.motion.skeleton import DIMS, PLACE

TREMOR = 0.03
"""Radians of every joint in every frame of a clip, so that no density becomes a spike."""


def clips(texts: Sequence[str], frames: int, reached: Tensor) -> Tensor:
    """(B, F, 72): the arm turns at its shoulder from rest towards where the intent says, slowly at both ends, and stops
    at the share `reached`, (B,), of the way."""
    time = torch.linspace(0, 1, frames).clamp(max=0.75) / 0.75
    eased = time.pow(2) * (3 - 2 * time)  # (F,)
    turns = torch.stack([_turn(text) for text in texts])  # (B, 72)
    made = eased[None, :, None] * (reached[:, None] * turns)[:, None]
    return made + TREMOR * torch.randn_like(made)


@lru_cache
def _turn(text: str) -> Tensor:
    """(72,): the shoulder's turn that points the arm where the intent says."""
    intent = INTENTS[text]
    rest = torch.tensor([1.0 if intent.side == "left" else -1.0, 0.0, 0.0])
    goal = torch.tensor(intent.direction)
    axis = torch.linalg.cross(rest, goal)
    turn, at = torch.zeros(DIMS), 3 * PLACE[f"{intent.side}_shoulder"]
    turn[at : at + 3] = axis / axis.norm() * math.acos(float(rest @ goal))
    return turn


def warm(policy: Policy, settings: MotionSettings, habit: tuple[float, float], seed: int) -> Policy:
    """Train `policy` on clips that reach between the two shares of the way. torch's global generator is left as it
    was. Returns the policy."""
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.warm_learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for step in range(settings.warm_steps):
            for group in optimizer.param_groups:
                group["lr"] = settings.warm_learning_rate * (1 - 0.9 * step / settings.warm_steps)
            texts = [TRAINED[i] for i in torch.randint(len(TRAINED), (settings.warm_batch,)).tolist()]
            reached = habit[0] + (habit[1] - habit[0]) * torch.rand(len(texts))
            batch = clips(texts, settings.frames, reached)
            optimizer.zero_grad()
            loss(policy, batch, texts).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    return policy.eval()


def loss(policy: Policy, batch: Tensor, texts: Sequence[str]) -> Tensor:
    """What the warm-up minimises: the clips' negative log-density per coordinate; of a diffusion model, its denoising
    error."""
    if isinstance(policy, DiffusionPolicy):
        return policy.denoising_loss(batch, texts)
    samples = Samples({"trajectory": batch}, torch.ones_like(batch).flatten(1), [])
    return -policy.step_log_probs(samples, texts).mean()
