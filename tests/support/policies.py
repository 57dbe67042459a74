"""Helpers for the tests of policies: one of each kind, small enough for a millisecond per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.support.attached import llama
from tests.unit.learner.test_attach_trl import tokenizer

from oven_learner.policies import (
    CausalPolicy,
    DiffusionPolicy,
    GaussianTrajectory,
    Policy,
    PolicyTrainer,
    PolicyTrainerConfig,
    TemporalUNet,
    TrajectoryNetwork,
)

INTENTS: list[Any] = [[0.5, -1.0, 0.2], [1.0, 0.3, -0.4], [-0.7, 0.1, 0.9]]


def causal() -> Policy:
    words = tokenizer()
    words.padding_side = "left"
    return CausalPolicy(llama(), words, max_tokens=4)


def gaussian() -> Policy:
    return GaussianTrajectory(TrajectoryNetwork(3, 4, 2, hidden=8))


def diffusion() -> Policy:
    library = pytest.importorskip("diffusers")
    scheduler = library.DDIMScheduler(num_train_timesteps=40, clip_sample=False)
    network = TemporalUNet(3, 4, 2, channels=(8, 16))
    return DiffusionPolicy(network, scheduler, frames=4, dims=2, steps=4)


KINDS: dict[str, Callable[[], Policy]] = {"causal": causal, "gaussian": gaussian, "diffusion": diffusion}


def made(kind: str, seed: int = 0) -> Policy:
    """Return a policy with known weights, in evaluation mode."""
    torch.manual_seed(seed)
    return KINDS[kind]().eval()


def conditions(kind: str) -> list[Any]:
    return ["ab", "c", "de"] if kind == "causal" else INTENTS


def liked(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """A reward for any kind of policy: vowels, or a large first coordinate."""
    return [
        sum(letter in "aeiou" for letter in done) / 4 if isinstance(done, str) else float(done[0, 0])
        for done in completions
    ]


def trainer(kind: str, rewards: Any = None, policy_conditions: Any = None, **settings: Any) -> PolicyTrainer:
    """Return a trainer with four samples for each of two conditions. Other keywords are the trainer's settings."""
    own = {name: settings.pop(name) for name in ("teachers", "teacher", "evaluate", "output_dir") if name in settings}
    defaults = {"max_steps": 4, "group_size": 4, "conditions_per_step": 2, "learning_rate": 0.01}
    policy = settings.pop("policy", None) or made(kind)
    config = PolicyTrainerConfig(**(defaults | settings))
    return PolicyTrainer(policy, rewards or {"liked": liked}, policy_conditions or conditions(kind), config, **own)


def gradient(policy: Policy) -> torch.Tensor:
    """Return the gradient of all parameters as one vector, with 0 where there is none."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients]).clone()
