"""The reward functions: the hand must reach the target, the motion must be smooth, and no joint may turn too far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oven_learner.policies import Policy
from oven_learner.rewards.verdicts import RewardFunction
from oven_recipes.motion.intents import EVALUATION_TEXTS, INTENTS
from oven_recipes.motion.skeleton import JOINT_INDEX, positions, rotation_limits

CLIP_PARTS = 4
"""Number of equal parts of a clip. The hand must be at the target during the last part."""
DISTANCE_SCALE_M, ACCELERATION_SCALE_M, EXCESS_SCALE_RAD = 0.25, 0.1, 0.1
"""Values at which a score has fallen to 1/e: the hand's mean distance from the target, the mean second difference of
the joints' positions between frames, and the mean excess over the joint limits."""


def reach(prompts: Sequence[str], completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 if the hand stays at the target through the clip's last quarter, and less for a greater distance."""
    last_frames = len(completions[0]) // CLIP_PARTS
    joints = positions(torch.stack(list(completions))[:, -last_frames:])  # (B, F/4, 24, 3)
    hands = torch.tensor([JOINT_INDEX[f"{INTENTS[text].side}_hand"] for text in prompts])
    targets = torch.stack([INTENTS[text].target() for text in prompts])
    hand_positions = joints[torch.arange(len(hands)), :, hands]  # (B, F/4, 3)
    distance = (hand_positions - targets[:, None]).norm(dim=-1).mean(1)
    return [*torch.exp(-distance / DISTANCE_SCALE_M).tolist()]


def smoothness(completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 if all joints move at constant velocity, and less for jerky motion."""
    acceleration = positions(torch.stack(list(completions))).diff(n=2, dim=1).norm(dim=-1).mean((1, 2))
    return [*torch.exp(-acceleration / ACCELERATION_SCALE_M).tolist()]


def joint_limits(completions: Sequence[Tensor], **_: Any) -> list[float | None]:
    """Return 1 if all joints stay within their limits in every frame, and less if some exceed them."""
    rotation = torch.stack([clip.reshape(len(clip), -1, 3) for clip in completions]).norm(dim=-1)  # (B, F, 24)
    excess = (rotation - rotation_limits()).clamp(min=0).mean((1, 2))
    return [*torch.exp(-excess / EXCESS_SCALE_RAD).tolist()]


RULES: dict[str, RewardFunction] = {"reach": reach, "smoothness": smoothness, "limits": joint_limits}
WEIGHTS = {"reach": 0.7, "smoothness": 0.2, "limits": 0.1}
CLIPS_PER_INTENT = 4
"""Number of clips for each held-out intent in an evaluation."""


def weighted_score(prompts: Sequence[str], clips: Sequence[Tensor]) -> Tensor:
    """Return the weighted mean of the scores of each clip for its intent, (B,), from 0 to 1."""
    scores = {name: rule(prompts=prompts, completions=clips) for name, rule in RULES.items()}
    return sum((WEIGHTS[name] * torch.tensor(values) for name, values in scores.items()), torch.zeros(len(clips)))


def held_out_rewards(policy: Policy, seed: int) -> Tensor:
    """Sample clips for the held-out intents, and return their rewards, (B,). Seeds torch's global generator."""
    torch.manual_seed(seed)
    clips = policy.sample(EVALUATION_TEXTS, CLIPS_PER_INTENT).outputs
    texts = [text for text in EVALUATION_TEXTS for _ in range(CLIPS_PER_INTENT)]
    return weighted_score(texts, clips)
