"""Builds the trainer of the recipe `motion` with its policy, teachers, reward and evaluation, and runs the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.policies import (
    DiffusionPolicy,
    GaussianTrajectory,
    Policy,
    PolicyTrainer,
    PolicyTrainerConfig,
    TemporalUNet,
    TextEncoder,
    TrajectoryNetwork,
    checkpoint,
)
from oven_learner.policies.diffusion_policy import import_diffusers
from oven_learner.rewards import Committee
from oven_recipes.motion.intents import EVALUATION_TEXTS, TRAINING_TEXTS
from oven_recipes.motion.rewards import RULES, WEIGHTS, held_out_rewards
from oven_recipes.motion.run_record import RunRecord
from oven_recipes.motion.settings import MotionSettings, Start, parse_start
from oven_recipes.motion.skeleton import DIMS
from oven_recipes.motion.warm_up import load_or_warm_up
from oven_recipes.recipe_interface import BETA_BOUNDS, LR_BOUNDS, TrainingRequest
from oven_recipes.training_runner import end_on_sigterm

HELD_OUT_REWARD = MetricSpec(name="eval/reward", better="up", held_out=True, ceiling=1.0)
FULL_REACH = (1.0, 1.0)  # range of the reach in clips in which the arm always reaches the target


def build(settings: MotionSettings, start: Start, seed: int, cache: Path, output: Path | None = None) -> PolicyTrainer:
    """Build the trainer for one start. The policy and its teachers are warmed up, or loaded from `cache` if an earlier
    run stored them there. The trainer writes its checkpoints to `output`."""
    narrow_settings = settings.model_copy(update={"hidden": settings.hidden // 2})
    policy = _warm_policy(settings, settings.warm_reach, seed, cache, "policy")
    teachers = {
        "small": _warm_policy(narrow_settings, settings.warm_reach, seed + 1, cache, "small teacher"),
        "strong": _warm_policy(settings, FULL_REACH, seed + 2, cache, "strong teacher"),
    }
    return PolicyTrainer(
        policy,
        Committee(RULES, weights=WEIGHTS, quorum=1, seed=seed),
        TRAINING_TEXTS,
        PolicyTrainerConfig(
            max_steps=settings.steps,
            group_size=settings.group_size,
            conditions_per_step=settings.intents_per_step,
            learning_rate=start.learning_rate,
            beta=settings.beta if start.beta is None else start.beta,
            updates_per_batch=settings.updates_per_batch,
            max_grad_norm=settings.max_grad_norm,
            seed=seed,
            lr_bounds=LR_BOUNDS,
            beta_bounds=BETA_BOUNDS,
            save_steps=settings.save_every,
        ),
        teachers=teachers,
        teacher=start.teacher,
        evaluate=held_out_evaluation(policy, seed),
        evaluate_every=settings.eval_every,
        metrics=(MetricSpec(name="reward", better="up", ceiling=1.0), HELD_OUT_REWARD),
        output_dir=output,
    )


def _warm_policy(settings: MotionSettings, reach: tuple[float, float], seed: int, cache: Path, name: str) -> Policy:
    return load_or_warm_up(new_policy(settings, seed), settings, reach, seed, cache, name)


def new_policy(settings: MotionSettings, seed: int) -> Policy:
    """Return a freshly initialised policy. Torch's global generator is restored."""
    encoder = TextEncoder(TRAINING_TEXTS, settings.embedding)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.policy == "gaussian":
            network = TrajectoryNetwork(encoder.dim, settings.frames, DIMS, hidden=settings.hidden)
            return GaussianTrajectory(network, encoder)
        scheduler = import_diffusers().DDIMScheduler(
            num_train_timesteps=100, beta_schedule="squaredcos_cap_v2", prediction_type="sample", clip_sample=False
        )
        width = max(8, settings.hidden // 4)
        return DiffusionPolicy(
            TemporalUNet(encoder.dim, settings.frames, DIMS, channels=(width, 2 * width)),
            scheduler,
            frames=settings.frames,
            dims=DIMS,
            steps=settings.denoising_steps,
            encode=encoder,
        )


def held_out_evaluation(policy: Policy, seed: int) -> Callable[[], Measurements]:
    """Return a function that scores clips for the held-out intents, always with the same noise."""

    def evaluate() -> Measurements:  # the client restores the random state afterwards
        return {HELD_OUT_REWARD.name: held_out_rewards(policy, seed).tolist()}

    return evaluate


def train(request: TrainingRequest) -> None:
    """Train to the end, or until SIGTERM. Then write `motion.npz` and `motion.png` to the run's folder."""
    torch.set_num_threads(1)  # more threads do not help with such small steps
    options = request.options | ({"max_steps": request.steps} if request.steps else {})
    settings = MotionSettings.model_validate(options)
    checkpoints = request.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    trainer: PolicyTrainer | None = None
    end_on_sigterm(lambda: trainer.client if trainer is not None else None)
    trainer = build(settings, parse_start(request.start), request.seed, request.cache, checkpoints)
    record = RunRecord(trainer, EVALUATION_TEXTS[0], request.seed)
    resumed = checkpoint.newest(checkpoints) if request.resume else None
    if resumed is not None:
        checkpoint.load(trainer, resumed)
    trainer.train(seconds=request.seconds, recipe="motion")
    record.write(request.folder)
