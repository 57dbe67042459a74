"""Builds the recipe's trainer with its policy, teachers, committee and evaluation, and draws the clips of a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.policies import (
    DiffusionPolicy,
    GaussianTrajectory,
    Policy,
    PolicyTrainer,
    PolicyTrainerConfig,
    Samples,
    TemporalUNet,
    TextEncoder,
    TrajectoryNetwork,
    checkpoint,
)
from oven_learner.policies.diffusion import diffusers
from oven_learner.rewards import Committee
from oven_recipes.base import LR_BOUNDS, TrainingRequest
from oven_recipes.motion.intents import EVALUATION_TEXTS, INTENTS, TRAINING_TEXTS
from oven_recipes.motion.rewards import CLIPS_PER_INTENT, FINAL_PARTS, RULES, WEIGHTS, weighted_score
from oven_recipes.motion.settings import MotionSettings, Start, parse_start
from oven_recipes.motion.skeleton import DIMS, JOINT_INDEX, PARENTS, positions
from oven_recipes.runner import end_on_sigterm
from oven_recipes.small_models import optimizer_step

JOINT_NOISE = 0.03
"""Standard deviation of the noise on every joint and frame of a clip, in radians. It keeps densities finite."""


def clips(texts: Sequence[str], frames: int, reached_shares: Tensor) -> Tensor:
    """Return clips (B, F, 72) in which the arm turns at the shoulder from rest towards the intent. The motion starts
    and ends slowly, and stops at the share `reached_shares`, (B,), of the full rotation."""
    time = torch.linspace(0, 1, frames).clamp(max=0.75) / 0.75
    eased_time = time.pow(2) * (3 - 2 * time)  # (F,)
    rotations = torch.stack([_shoulder_rotation(text) for text in texts])  # (B, 72)
    motion = eased_time[None, :, None] * (reached_shares[:, None] * rotations)[:, None]
    return motion + JOINT_NOISE * torch.randn_like(motion)


@lru_cache
def _shoulder_rotation(text: str) -> Tensor:
    """Return the shoulder rotation (72,) that points the arm towards the intent."""
    intent = INTENTS[text]
    rest = torch.tensor([1.0 if intent.side == "left" else -1.0, 0.0, 0.0])
    goal = torch.tensor(intent.direction)
    axis = torch.linalg.cross(rest, goal)
    turn, channel = torch.zeros(DIMS), 3 * JOINT_INDEX[f"{intent.side}_shoulder"]
    turn[channel : channel + 3] = axis / axis.norm() * math.acos(float(rest @ goal))
    return turn


def warm_up(policy: Policy, settings: MotionSettings, habit: tuple[float, float], seed: int) -> Policy:
    """Train `policy` on clips, and return it. `habit` is the minimum and maximum share of the rotation in clips.
    torch's global generator is restored."""
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.warm_learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
    )
    schedule = LambdaLR(optimizer, lambda step: 1 - 0.9 * step / max(1, settings.warm_steps))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(settings.warm_steps):
            texts = [TRAINING_TEXTS[i] for i in torch.randint(len(TRAINING_TEXTS), (settings.warm_batch,)).tolist()]
            reached_shares = habit[0] + (habit[1] - habit[0]) * torch.rand(len(texts))
            loss = warm_up_loss(policy, clips(texts, settings.frames, reached_shares), texts)
            optimizer_step(loss, policy.parameters(), optimizer, schedule)
    return policy.eval()


def warm_up_loss(policy: Policy, batch: Tensor, texts: Sequence[str]) -> Tensor:
    """Return the warm-up's loss: the clips' negative log-density per coordinate, or a diffusion model's denoising
    error."""
    if isinstance(policy, DiffusionPolicy):
        return policy.denoising_loss(batch, texts)
    samples = Samples({"trajectory": batch}, torch.ones_like(batch).flatten(1), [])
    return -policy.step_log_probs(samples, texts).mean()


BETA_BOUNDS = (0.01, 10.0)
HELD_OUT = MetricSpec(name="eval/reward", better="up", held_out=True, ceiling=1.0)


def build(settings: MotionSettings, start: Start, seed: int, output: Path | None = None) -> PolicyTrainer:
    """Return the trainer for one start, with a warm policy and warm teachers."""
    habit = settings.habit
    policy = warm_up(new_policy(settings, seed), settings, habit, seed)
    narrow = settings.model_copy(update={"hidden": settings.hidden // 2})
    teachers = {
        "small": warm_up(new_policy(narrow, seed + 1), settings, habit, seed + 1),
        "strong": warm_up(new_policy(settings, seed + 2), settings, (1.0, 1.0), seed + 2),
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
        metrics=(MetricSpec(name="reward", better="up", ceiling=1.0), HELD_OUT),
        output_dir=output,
    )


def new_policy(settings: MotionSettings, seed: int) -> Policy:
    """Return a freshly initialised policy. torch's global generator is restored."""
    encode = TextEncoder(TRAINING_TEXTS, settings.embedding)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.policy == "gaussian":
            return GaussianTrajectory(
                TrajectoryNetwork(encode.dim, settings.frames, DIMS, hidden=settings.hidden), encode
            )
        scheduler = diffusers().DDIMScheduler(
            num_train_timesteps=100, beta_schedule="squaredcos_cap_v2", prediction_type="sample", clip_sample=False
        )
        width = max(8, settings.hidden // 4)
        return DiffusionPolicy(
            TemporalUNet(encode.dim, settings.frames, DIMS, channels=(width, 2 * width)),
            scheduler,
            frames=settings.frames,
            dims=DIMS,
            steps=settings.denoising_steps,
            encode=encode,
        )


def held_out_evaluation(policy: Policy, seed: int) -> Callable[[], Measurements]:
    """Return a function that scores clips for the held-out intents, always with the same noise."""

    def evaluate() -> Measurements:
        torch.manual_seed(seed)  # `connect` restores the generators
        clips = policy.sample(EVALUATION_TEXTS, CLIPS_PER_INTENT).outputs
        texts = [text for text in EVALUATION_TEXTS for _ in range(CLIPS_PER_INTENT)]
        return {HELD_OUT.name: weighted_score(texts, clips).tolist()}

    return evaluate


def train(request: TrainingRequest) -> None:
    """Train to the end. SIGTERM stops it cleanly. Writes `motion.png` and `motion.npz` to the run's folder."""
    torch.set_num_threads(1)  # more threads do not help with such small steps
    options = {**request.options, **({"max_steps": request.steps} if request.steps else {})}
    settings = MotionSettings.model_validate(options)
    checkpoints = request.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    trainer: PolicyTrainer | None = None
    end_on_sigterm(lambda: trainer.client if trainer is not None else None)
    trainer = build(settings, parse_start(request.start), request.seed, checkpoints)
    record = Record(trainer, EVALUATION_TEXTS[0], request.seed)
    resumed = checkpoint.newest(checkpoints) if request.resume else None
    if resumed is not None:
        checkpoint.load(trainer, resumed)
    trainer.train(seconds=request.seconds, recipe="motion")
    record.write(request.folder)


log = logging.getLogger("oven.learner")

PICTURE_FRAMES = 6
"""Number of a clip's frames in the picture."""
COLOURS = {"start": "dimgrey", "end": "royalblue", "teacher": "chocolate"}


class Record:
    """A record of a run: clips of the policy at the start and the end, and the reward at each step."""

    def __init__(self, trainer: PolicyTrainer, intent: str, seed: int) -> None:
        self._trainer, self._intent, self._seed = trainer, intent, seed
        self._clips = {"start": self._joints(trainer.policy)}
        self._held_out_rewards = {"start": self._held_out_reward(trainer.policy)}
        self._rewards: dict[int, float] = {}
        update = trainer.update

        def recorded_update(number: int, conditions: list[str]) -> dict[str, float]:
            metrics = update(number, conditions)
            self._rewards[trainer.step] = metrics.get("reward", float("nan"))
            return metrics

        trainer.update = recorded_update  # type: ignore[assignment, method-assign]

    def write(self, folder: Path) -> None:
        """Write both files. Without matplotlib, log a warning and skip the picture."""
        teacher = self._trainer.teachers[self._trainer.teachers.names[-1]]
        for name, policy in (("end", self._trainer.policy), ("teacher", teacher)):
            self._clips[name], self._held_out_rewards[name] = self._joints(policy), self._held_out_reward(policy)
        steps = sorted(self._rewards)
        clips: dict[str, Any] = {name: clip.numpy() for name, clip in self._clips.items()}
        numpy.savez(
            folder / "motion.npz",
            **clips,
            target=INTENTS[self._intent].target().numpy(),
            step=numpy.array(steps),
            reward=numpy.array([self._rewards[step] for step in steps]),
        )
        try:
            from matplotlib.figure import Figure
        except ImportError:
            log.warning("motion.png needs matplotlib (`pip install matplotlib`); motion.npz has the same data")
            return
        figure = Figure(figsize=(11, 10), layout="constrained")
        parts: Any = figure.subfigures(len(self._clips) + 1, 1)
        *rows, bottom = parts
        for row, name in zip(rows, self._clips, strict=True):
            self._draw_clip(row, name)
        curve = bottom.subplots()
        curve.plot(steps, [self._rewards[step] for step in steps], color="seagreen")
        curve.set(xlabel="step", title="mean reward per step on training intents")
        curve.grid(axis="y")
        figure.savefig(folder / "motion.png")

    def _draw_clip(self, row: Any, name: str) -> None:
        clip, target = self._clips[name], INTENTS[self._intent].target()
        hand = JOINT_INDEX[f"{INTENTS[self._intent].side}_hand"]
        distance = float((clip[-(len(clip) // FINAL_PARTS) :, hand] - target).norm(dim=-1).mean())
        reward = self._held_out_rewards[name]
        caption = f"{distance:.2f} m from the target at the end; mean reward of held-out intents {reward:.2f}"
        row.suptitle(f"{name}: {self._intent}; {caption}", fontsize=10)
        axes = row.subplots(1, PICTURE_FRAMES)
        for axis, frame in zip(
            axes, numpy.linspace(0, len(clip) - 1, PICTURE_FRAMES).astype(int).tolist(), strict=True
        ):
            joints, goal = _project(clip[frame]), _project(target[None])
            for joint, parent in enumerate(PARENTS[1:], start=1):
                axis.plot(*joints[[parent, joint]].T, color=COLOURS[name], linewidth=2)
            axis.scatter(*joints[[JOINT_INDEX["head"], hand]].T, s=(90, 20), color=COLOURS[name])
            axis.scatter(*goal.T, s=60, facecolors="none", edgecolors="red")
            axis.set(
                xlim=(-0.9, 0.9), ylim=(-1.1, 1.0), xticks=(), yticks=(), aspect="equal", xlabel=f"frame {frame + 1}"
            )

    @torch.no_grad()
    def _held_out_reward(self, policy: Policy) -> float:
        """Return the mean reward over the held-out intents, always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            rows = [text for text in EVALUATION_TEXTS for _ in range(CLIPS_PER_INTENT)]
            return float(weighted_score(rows, policy.sample(EVALUATION_TEXTS, CLIPS_PER_INTENT).outputs).mean())

    @torch.no_grad()
    def _joints(self, policy: Policy) -> Tensor:
        """Return the joints of one clip, (F, 24, 3), always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return positions(policy.sample([self._intent], 1).outputs[0])


def _project(joints: Tensor) -> Any:
    """Project joints in metres, (N, 3), to the picture, (N, 2), viewed from the front and slightly from the side."""
    return torch.stack([joints[:, 0] * 0.85 + joints[:, 2] * 0.5, joints[:, 1]], -1).numpy()
