"""The committee's rules: the hand must reach the target, the motion must be smooth, and no joint may turn too far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oven_learner.rewards.scores import RewardFunction
from oven_recipes.motion.intents import INTENTS
from oven_recipes.motion.skeleton import PLACE, limits, positions

LAST = 4
"""Share of a clip that must be at the target: the last quarter."""
REACH_M, JERK_M, EXCESS = 0.25, 0.1, 0.1
"""Values at which each score has fallen to 1/e: metres from the target; metres of second difference per frame; mean
radians beyond the limit over joints."""


def reach(prompts: Sequence[str], completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 for a hand that stays at the target through the clip's last quarter."""
    placed = positions(torch.stack(list(completions))[:, -(len(completions[0]) // LAST) :])  # (B, F/4, 24, 3)
    hands = torch.tensor([PLACE[f"{INTENTS[text].side}_hand"] for text in prompts])
    targets = torch.stack([INTENTS[text].target() for text in prompts])
    hand_positions = placed[torch.arange(len(hands)), :, hands]  # (B, F/4, 3)
    away = (hand_positions - targets[:, None]).norm(dim=-1).mean(1)
    return [*torch.exp(-away / REACH_M).tolist()]


def smoothness(completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 for joints that move at constant speed."""
    jerk = positions(torch.stack(list(completions))).diff(n=2, dim=1).norm(dim=-1).mean((1, 2))
    return [*torch.exp(-jerk / JERK_M).tolist()]


def joint_limits(completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 for joints within their limits in every frame."""
    turned = torch.stack([clip.reshape(len(clip), -1, 3) for clip in completions]).norm(dim=-1)  # (B, F, 24)
    return [*torch.exp(-(turned - limits()).clamp(min=0).mean((1, 2)) / EXCESS).tolist()]


RULES: dict[str, RewardFunction] = {"reach": reach, "smoothness": smoothness, "limits": joint_limits}
WEIGHTS = {"reach": 0.7, "smoothness": 0.2, "limits": 0.1}


EACH = 4
"""Clips per held-out intent in an evaluation."""


def worth(prompts: Sequence[str], clips: Sequence[Tensor]) -> Tensor:
    """Return the weighted mean of the rules' scores, (B,), 0 to 1, for held-out intents."""
    scores = {name: rule(prompts=prompts, completions=clips) for name, rule in RULES.items()}
    return sum((WEIGHTS[name] * torch.tensor(values) for name, values in scores.items()), torch.zeros(len(clips)))
