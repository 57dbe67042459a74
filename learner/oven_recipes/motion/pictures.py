"""Pictures of the policy before and after, and of its teacher: `motion.npz` with the joints, `motion.png` to look
at."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from oven_learner.policies import Policy, PolicyTrainer
from oven_recipes.motion.intents import EVALUATED, INTENTS
from oven_recipes.motion.rewards import EACH, LAST, worth
from oven_recipes.motion.skeleton import PARENTS, PLACE, positions

log = logging.getLogger("oven.learner")

SHOWN = 6
"""Frames of a clip in the picture."""
COLOURS = {"start": "dimgrey", "end": "royalblue", "teacher": "chocolate"}


class Record:
    """Records the policy's clips at the start, and the reward of each step."""

    def __init__(self, trainer: PolicyTrainer, intent: str, seed: int) -> None:
        self._trainer, self._intent, self._seed = trainer, intent, seed
        self._clips = {"start": self._joints(trainer.policy)}
        self._worths = {"start": self._worth(trainer.policy)}
        self._rewards: dict[int, float] = {}
        update = trainer.update

        def noted(number: int, conditions: list[str]) -> dict[str, float]:
            metrics = update(number, conditions)
            self._rewards[trainer.step] = metrics.get("reward", float("nan"))
            return metrics

        trainer.update = noted  # type: ignore[assignment, method-assign]

    def write(self, folder: Path) -> None:
        """Write both files. Without matplotlib there is no picture, and a line in the log says so."""
        teacher = self._trainer.teachers[self._trainer.teachers.names[-1]]
        for name, policy in (("end", self._trainer.policy), ("teacher", teacher)):
            self._clips[name], self._worths[name] = self._joints(policy), self._worth(policy)
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
            log.warning("no motion.png: it needs matplotlib (`pip install matplotlib`); motion.npz has the same")
            return
        figure = Figure(figsize=(11, 10), layout="constrained")
        parts: Any = figure.subfigures(len(self._clips) + 1, 1)
        *rows, bottom = parts
        for row, name in zip(rows, self._clips, strict=True):
            self._draw_clip(row, name)
        curve = bottom.subplots()
        curve.plot(steps, [self._rewards[step] for step in steps], color="seagreen")
        curve.set(xlabel="step", title="mean reward of each step, over the intents that it was trained on")
        curve.grid(axis="y")
        figure.savefig(folder / "motion.png")

    def _draw_clip(self, row: Any, name: str) -> None:
        clip, target = self._clips[name], INTENTS[self._intent].target()
        hand = PLACE[f"{INTENTS[self._intent].side}_hand"]
        away = float((clip[-(len(clip) // LAST) :, hand] - target).norm(dim=-1).mean())
        caption = f"{away:.2f} m from the target at the end; mean reward of held-out intents {self._worths[name]:.2f}"
        row.suptitle(f"{name}: {self._intent}; {caption}", fontsize=10)
        axes = row.subplots(1, SHOWN)
        for axis, frame in zip(axes, numpy.linspace(0, len(clip) - 1, SHOWN).astype(int).tolist(), strict=True):
            joints, goal = _seen(clip[frame]), _seen(target[None])
            for joint, parent in enumerate(PARENTS[1:], start=1):
                axis.plot(*joints[[parent, joint]].T, color=COLOURS[name], linewidth=2)
            axis.scatter(*joints[[PLACE["head"], hand]].T, s=(90, 20), color=COLOURS[name])
            axis.scatter(*goal.T, s=60, facecolors="none", edgecolors="red")
            axis.set(
                xlim=(-0.9, 0.9), ylim=(-1.1, 1.0), xticks=(), yticks=(), aspect="equal", xlabel=f"frame {frame + 1}"
            )

    @torch.no_grad()
    def _worth(self, policy: Policy) -> float:
        """Return the mean over the held-out intents, always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            rows = [text for text in EVALUATED for _ in range(EACH)]
            return float(worth(rows, policy.sample(EVALUATED, EACH).outputs).mean())

    @torch.no_grad()
    def _joints(self, policy: Policy) -> Tensor:
        """Return one clip's joints, (F, 24, 3), always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return positions(policy.sample([self._intent], 1).outputs[0])


def _seen(joints: Tensor) -> Any:
    """Project joints in metres, (N, 3), to the picture, (N, 2): seen from the front and slightly from the side."""
    return torch.stack([joints[:, 0] * 0.85 + joints[:, 2] * 0.5, joints[:, 1]], -1).numpy()
