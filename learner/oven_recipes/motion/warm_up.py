"""Trains policies on synthetic clips before GRPO. In these clips, the arm turns at the shoulder towards the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from oven_learner.policies import DiffusionPolicy, Policy, Samples
from oven_recipes.motion.intents import INTENTS, TRAINING_TEXTS
from oven_recipes.motion.settings import MotionSettings
from oven_recipes.motion.skeleton import DIMS, JOINT_INDEX
from oven_recipes.preparation import resumable_steps
from oven_recipes.small_models import optimizer_step
from oven_recipes.weights_cache import key_of, load_or_train

JOINT_NOISE = 0.03
"""Standard deviation of the noise on every joint and frame of a clip, in radians. It keeps the policy's density from
becoming infinite."""


def synthetic_clips(texts: Sequence[str], frames: int, reached_fractions: Tensor) -> Tensor:
    """Return clips (B, F, 72) in which the arm turns at the shoulder from rest towards the target. The motion starts
    and ends slowly, and stops at `reached_fractions`, (B,), of the full rotation."""
    time = torch.linspace(0, 1, frames).clamp(max=0.75) / 0.75  # the arm rests in the last quarter
    eased_time = time.pow(2) * (3 - 2 * time)  # (F,)
    rotations = torch.stack([_shoulder_rotation(text) for text in texts])  # (B, 72)
    final_rotations = reached_fractions[:, None] * rotations  # (B, 72)
    motion = eased_time[None, :, None] * final_rotations[:, None]  # (B, F, 72)
    return motion + JOINT_NOISE * torch.randn_like(motion)


@lru_cache
def _shoulder_rotation(text: str) -> Tensor:
    """Return the axis-angles (72,) of a skeleton whose arm points towards the target."""
    intent = INTENTS[text]
    rest = torch.tensor([1.0 if intent.side == "left" else -1.0, 0.0, 0.0])
    goal = torch.tensor(intent.direction)
    axis = torch.linalg.cross(rest, goal)
    rotation, first_index = torch.zeros(DIMS), 3 * JOINT_INDEX[f"{intent.side}_shoulder"]
    rotation[first_index : first_index + 3] = axis / axis.norm() * math.acos(float(rest @ goal))
    return rotation


VERSION = 1  # increase it when a code change would change the warm weights
WEIGHT_SETTINGS = (
    "policy", "frames", "hidden", "denoising_steps", "warm_steps", "warm_batch", "warm_learning_rate",
)  # fmt: skip
"""The settings that the warm weights depend on, in addition to the encoder of the intents."""


def load_or_warm_up(
    policy: Policy, settings: MotionSettings, reach: tuple[float, float], seed: int, cache: Path, name: str = "policy"
) -> Policy:
    """Load the weights of a fresh policy from the cache, or train them with `warm_up`, which explains the arguments."""
    weight_settings = {name: getattr(settings, name) for name in WEIGHT_SETTINGS}
    shapes = {name: list(weight.shape) for name, weight in policy.state_dict().items()}  # depend on the encoder
    key = key_of({"version": VERSION, "seed": seed, "reach": reach, "shapes": shapes, **weight_settings})
    return load_or_train(
        cache / f"motion-warm-{key}",
        seed,
        lambda: policy,
        lambda fresh_policy, unfinished: warm_up(fresh_policy, settings, reach, seed, unfinished, name),
    ).eval()


def warm_up(
    policy: Policy,
    settings: MotionSettings,
    reach: tuple[float, float],
    seed: int,
    unfinished: Path | None = None,
    name: str = "policy",
) -> Policy:
    """Train `policy` on synthetic clips, and return it. `reach` is the minimum and maximum fraction of the full
    rotation in these clips. Progress is saved to `unfinished`, and reported under `name`. Torch's global generator is
    restored."""
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.warm_learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
    )
    schedule = LambdaLR(optimizer, lambda step: 1 - 0.9 * step / max(1, settings.warm_steps))  # down to a tenth
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trained = (policy, optimizer, schedule)
        for _ in resumable_steps(f"warm-up of the {name}", repeat(None), settings.warm_steps, trained, unfinished):
            indices = torch.randint(len(TRAINING_TEXTS), (settings.warm_batch,)).tolist()
            texts = [TRAINING_TEXTS[index] for index in indices]
            reached_fractions = reach[0] + (reach[1] - reach[0]) * torch.rand(len(texts))
            clips = synthetic_clips(texts, settings.frames, reached_fractions)
            loss = warm_up_loss(policy, clips, texts)
            optimizer_step(loss, policy.parameters(), optimizer, schedule)
    return policy.eval()


def warm_up_loss(policy: Policy, clips: Tensor, texts: Sequence[str]) -> Tensor:
    """Return the clips' negative log-density per coordinate, or for a diffusion policy its denoising error."""
    if isinstance(policy, DiffusionPolicy):
        return policy.denoising_loss(clips, texts)
    samples = Samples({"trajectory": clips}, torch.ones_like(clips).flatten(1), [])
    return -policy.step_log_probs(samples, texts).mean()
