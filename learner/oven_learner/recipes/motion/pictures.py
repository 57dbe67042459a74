"""What the policy does before and after, beside its teacher: `motion.npz` with the joints, `motion.png` to look at."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy
import torch
from torch import Tensor

from oven_learner.policies import Policy, PolicyTrainer
from oven_learner.recipes.motion.intents import INTENTS
from oven_learner.recipes.motion.skeleton import PARENTS, positions

log = logging.getLogger("oven.learner")

WIDE, HIGH, CURVE = 150, 230, 160
"""Pixels of a figure, and the height of the curve below."""
SHOWN = 6
"""Frames of a clip in the picture."""
COLOURS = {"start": (120, 120, 120), "end": (20, 90, 200), "teacher": (200, 90, 20)}


class Record:
    """Keeps what the policy did at the start, and the reward of each step."""

    def __init__(self, trainer: PolicyTrainer, intent: str, seed: int) -> None:
        self._trainer, self._intent, self._seed = trainer, intent, seed
        self._start = self._joints(trainer.policy)
        self._rewards: list[float] = []
        update = trainer.update

        def noted(number: int, conditions: list[str]) -> dict[str, float]:
            metrics = update(number, conditions)
            self._rewards.append(metrics.get("reward", float("nan")))
            return metrics

        trainer.update = noted  # type: ignore[assignment, method-assign]

    def write(self, folder: Path) -> None:
        """Both files. Without Pillow there is no picture, and a line in the log says so."""
        teacher = self._trainer.teachers[self._trainer.teachers.names[-1]]
        clips = {"start": self._start, "end": self._joints(self._trainer.policy), "teacher": self._joints(teacher)}
        target = INTENTS[self._intent].target()
        numpy.savez(
            folder / "motion.npz",
            start=self._start.numpy(),
            end=clips["end"].numpy(),
            teacher=clips["teacher"].numpy(),
            target=target.numpy(),
            reward=numpy.array(self._rewards),
        )
        try:
            from PIL import Image, ImageDraw
        except ImportError:
            log.warning("no motion.png: it needs Pillow (`pip install pillow`); motion.npz has what it would show")
            return
        image = Image.new("RGB", (SHOWN * WIDE, len(clips) * HIGH + CURVE), "white")
        pen = ImageDraw.Draw(image)
        for row, (name, clip) in enumerate(clips.items()):
            pen.text((6, row * HIGH + 4), f"{name}: {self._intent}", fill="black")
            for column, frame in enumerate(numpy.linspace(0, len(clip) - 1, SHOWN).astype(int).tolist()):
                at = _pixels(clip[frame], column, row)
                for joint, parent in enumerate(PARENTS[1:], start=1):
                    pen.line([at[parent], at[joint]], fill=COLOURS[name], width=3)
                x, y = _pixels(target[None], column, row)[0]
                pen.ellipse([x - 4, y - 4, x + 4, y + 4], outline=(200, 0, 0), width=2)
        top = len(clips) * HIGH
        pen.text((6, top + 4), "mean reward of each step, 0 to 1", fill="black")
        finite = [(step, value) for step, value in enumerate(self._rewards) if value == value]
        across = max(1, len(self._rewards) - 1)
        curve = [(SHOWN * WIDE * step / across, top + CURVE * (1 - value)) for step, value in finite]
        if len(curve) > 1:
            pen.line(curve, fill=(20, 120, 60), width=2)
        image.save(folder / "motion.png")

    @torch.no_grad()
    def _joints(self, policy: Policy) -> Tensor:
        """(F, 24, 3): one clip, always with the same noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return positions(policy.sample([self._intent], 1).outputs[0])


def _pixels(joints: Tensor, column: int, row: int) -> list[tuple[float, float]]:
    """Joints in metres, seen from the front and a little from the side."""
    x = joints[:, 0] * 0.85 + joints[:, 2] * 0.5
    scale = HIGH / 2.2
    return [
        (column * WIDE + WIDE / 2 - float(a) * scale, row * HIGH + HIGH * 0.48 - float(b) * scale)
        for a, b in zip(x, joints[:, 1], strict=True)
    ]
