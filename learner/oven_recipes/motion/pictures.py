"""Pictures of the policy before and after, and of its teacher: `motion.npz` with the joints, `motion.png` to look
at."""

from __future__ import annotations

import logging
import math
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

WIDE, HIGH, CURVE, MARGIN = 176, 230, 190, 40
"""Pixels of a figure, the height of the curve below, and the space around it."""
SHOWN = 6
"""Frames of a clip in the picture."""
HEAD = 9
"""Radius in pixels."""
COLOURS = {"start": (120, 120, 120), "end": (20, 90, 200), "teacher": (200, 90, 20)}
GREEN, GREY, RED = (20, 120, 60), (210, 210, 210), (200, 0, 0)


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
        """Write both files. Without Pillow there is no picture, and a line in the log says so."""
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
            from PIL import Image, ImageDraw
        except ImportError:
            log.warning("no motion.png: it needs Pillow (`pip install pillow`); motion.npz has what it would show")
            return
        image = Image.new("RGB", (SHOWN * WIDE, len(self._clips) * HIGH + CURVE), "white")
        pen = ImageDraw.Draw(image)
        for row, name in enumerate(self._clips):
            self._draw_clip(pen, row, name)
        self._draw_curve(pen, len(self._clips) * HIGH)
        image.save(folder / "motion.png")

    def _draw_clip(self, pen: Any, row: int, name: str) -> None:
        clip, target = self._clips[name], INTENTS[self._intent].target()
        hand = PLACE[f"{INTENTS[self._intent].side}_hand"]
        away = float((clip[-(len(clip) // LAST) :, hand] - target).norm(dim=-1).mean())
        caption = f"{away:.2f} m from the target at the end; mean reward of held-out intents {self._worths[name]:.2f}"
        pen.text((6, row * HIGH + 4), f"{name}: {self._intent}; {caption}", fill="black")
        for column, frame in enumerate(numpy.linspace(0, len(clip) - 1, SHOWN).astype(int).tolist()):
            pixels = _pixels(clip[frame], column, row)
            for joint, parent in enumerate(PARENTS[1:], start=1):
                pen.line([pixels[parent], pixels[joint]], fill=COLOURS[name], width=3)
            _circle(pen, pixels[PLACE["head"]], HEAD, fill=COLOURS[name])
            _circle(pen, pixels[hand], 4, fill=COLOURS[name])
            _circle(pen, _pixels(target[None], column, row)[0], 7, outline=RED, width=2)
            pen.text((column * WIDE + WIDE / 2 - 20, (row + 1) * HIGH - 16), f"frame {frame + 1}", fill="black")

    def _draw_curve(self, pen: Any, top: int) -> None:
        """Draw the reward of each step, in a frame of whole tenths."""
        pen.text((6, top + 4), "mean reward of each step, over the intents that it was trained on", fill="black")
        finite = [(step, value) for step, value in sorted(self._rewards.items()) if value == value]
        if len(finite) < 2:
            return
        low = math.floor(10 * min(value for _, value in finite))
        high = max(low + 1, math.ceil(10 * max(value for _, value in finite)))
        (first, _), (last, _) = finite[0], finite[-1]
        left_edge, right, bottom = MARGIN, SHOWN * WIDE - MARGIN, top + CURVE - 24

        def pixel(step: float, value: float) -> tuple[float, float]:
            down = (10 * value - low) / (high - low) * (CURVE - 24 - MARGIN)
            return left_edge + (right - left_edge) * (step - first) / (last - first), bottom - down

        for tenth in range(low, high + 1):
            y = pixel(first, tenth / 10)[1]
            pen.line([(left_edge, y), (right, y)], fill=GREY)
            pen.text((8, y - 6), f"{tenth / 10:.1f}", fill="black")
        pen.text((left_edge, bottom + 6), f"step {first}", fill="black")
        pen.text((right - 40, bottom + 6), f"step {last}", fill="black")
        pen.line([pixel(step, value) for step, value in finite], fill=GREEN, width=2)

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


def _pixels(joints: Tensor, column: int, row: int) -> list[tuple[float, float]]:
    """Project joints in metres to pixels, seen from the front and slightly from the side."""
    x = joints[:, 0] * 0.85 + joints[:, 2] * 0.5
    scale = HIGH / 2.2
    return [
        (column * WIDE + WIDE / 2 - float(a) * scale, row * HIGH + HIGH * 0.48 - float(b) * scale)
        for a, b in zip(x, joints[:, 1], strict=True)
    ]


def _circle(pen: Any, centre: tuple[float, float], radius: int, **look: Any) -> None:
    x, y = centre
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], **look)
