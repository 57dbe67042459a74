"""Records a run's rewards, and plots clips of its policy at the start and the end, and of its strongest teacher."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from oven_learner.policies import Policy, PolicyTrainer
from oven_recipes.motion.intents import INTENTS
from oven_recipes.motion.rewards import CLIP_PARTS, held_out_rewards
from oven_recipes.motion.skeleton import JOINT_INDEX, PARENTS, positions

log = logging.getLogger("oven.learner")

PICTURE_FRAMES = 6
"""Number of frames of each clip in the picture."""
COLOURS = {"start": "dimgrey", "end": "royalblue", "teacher": "chocolate"}


class RunRecord:
    """A record of a run: clips of the policy at the start and the end, a teacher's clip, and each step's reward."""

    def __init__(self, trainer: PolicyTrainer, intent: str, seed: int) -> None:
        self._trainer, self._intent, self._seed = trainer, intent, seed
        self._clips = {"start": self._sample_joints(trainer.policy)}
        self._held_out_rewards = {"start": self._held_out_reward(trainer.policy)}
        self._rewards: dict[int, float] = {}
        trainer.step_callbacks.append(self._record_reward)

    def _record_reward(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rewards[step] = metrics.get("reward", float("nan"))

    def write(self, folder: Path) -> None:
        """Write motion.npz and motion.png. Without matplotlib, log a warning and skip the picture."""
        strongest_teacher = self._trainer.teachers[self._trainer.teachers.names[-1]]
        for name, policy in (("end", self._trainer.policy), ("teacher", strongest_teacher)):
            self._clips[name] = self._sample_joints(policy)
            self._held_out_rewards[name] = self._held_out_reward(policy)
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
        subfigures: Any = figure.subfigures(len(self._clips) + 1, 1)
        *rows, bottom = subfigures
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
        last_positions = clip[-(len(clip) // CLIP_PARTS) :, hand]
        distance, reward = float((last_positions - target).norm(dim=-1).mean()), self._held_out_rewards[name]
        caption = f"{distance:.2f} m from the target at the end; mean reward of held-out intents {reward:.2f}"
        row.suptitle(f"{name}: {self._intent}; {caption}", fontsize=10)
        axes = row.subplots(1, PICTURE_FRAMES)
        frames = numpy.linspace(0, len(clip) - 1, PICTURE_FRAMES).astype(int).tolist()
        for axis, frame in zip(axes, frames, strict=True):
            joints, goal = _project(clip[frame]), _project(target[None])
            for joint, parent in enumerate(PARENTS[1:], start=1):
                axis.plot(*joints[[parent, joint]].T, color=COLOURS[name], linewidth=2)
            axis.scatter(*joints[[JOINT_INDEX["head"], hand]].T, s=(90, 20), color=COLOURS[name])  # sizes of head, hand
            axis.scatter(*goal.T, s=60, facecolors="none", edgecolors="red")
            axis.set(
                xlim=(-0.9, 0.9), ylim=(-1.1, 1.0), xticks=(), yticks=(), aspect="equal", xlabel=f"frame {frame + 1}"
            )

    @torch.no_grad()
    def _held_out_reward(self, policy: Policy) -> float:
        """Return the mean reward over the held-out intents, always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            return float(held_out_rewards(policy, self._seed).mean())

    @torch.no_grad()
    def _sample_joints(self, policy: Policy) -> Tensor:
        """Return the joint positions of one clip, (F, 24, 3), always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return positions(policy.sample([self._intent], 1).outputs[0])


def _project(joints: Tensor) -> Any:
    """Project joints in metres, (N, 3), to the picture, (N, 2), viewed from the front and slightly from the side."""
    return torch.stack([joints[:, 0] * 0.85 + joints[:, 2] * 0.5, joints[:, 1]], -1).numpy()
