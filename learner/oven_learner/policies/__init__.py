"""Policies (text models, Gaussian trajectories and diffusion models), and a GRPO trainer for them.

    policy = GaussianTrajectory(TrajectoryNetwork(intent_dim=8, frames=32, dims=72))
    trainer = PolicyTrainer(policy, {"reach": reach}, intents, PolicyTrainerConfig(max_steps=200))
    trainer.train()                                # connects to the controller like `oven.connect`

A policy is a torch module with `sample` and `step_log_probs` (policies/policy.py). TextEncoder converts text conditions
to vectors. DiffusionPolicy needs the extra `diffusion`.
"""

from oven_learner.policies.causal_policy import CausalPolicy
from oven_learner.policies.diffusion_policy import DiffusionPolicy, TemporalUNet
from oven_learner.policies.gaussian_policy import GaussianTrajectory, TrajectoryNetwork
from oven_learner.policies.policy import Policy, Samples
from oven_learner.policies.policy_teachers import PolicyTeachers
from oven_learner.policies.policy_trainer import PolicyTrainer, PolicyTrainerConfig
from oven_learner.policies.saved_policy import load_policy
from oven_learner.policies.text_encoder import TextEncoder

__all__ = [
    "CausalPolicy",
    "DiffusionPolicy",
    "GaussianTrajectory",
    "Policy",
    "PolicyTeachers",
    "PolicyTrainer",
    "PolicyTrainerConfig",
    "Samples",
    "TemporalUNet",
    "TextEncoder",
    "TrajectoryNetwork",
    "load_policy",
]
