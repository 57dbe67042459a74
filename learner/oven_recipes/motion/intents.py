"""Defines the policy's tasks, called intents. An intent is a sentence with the hand's target position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from oven_recipes.motion.skeleton import ARM_M, DIMS, JOINT_INDEX, positions

SIDES = {"left": 1.0, "right": -1.0}  # sign of the arm's x coordinates
HEIGHTS = {"high": 1.2, "up": 0.5, "straight": 0.0, "down": -0.5, "low": -1.2}  # upward component of the direction
DIRECTIONS = {"forward": (0.0, 1.0), "outward": (0.6, 0.8), "sideways": (0.95, 0.3), "across": (-0.5, 0.85)}
"""Horizontal components of the arm's direction by word: outwards from the body, and forwards."""
HELD_OUT_WORDS = (
    ("left", "up", "forward"),
    ("left", "straight", "across"),
    ("left", "low", "outward"),
    ("left", "high", "sideways"),
    ("right", "high", "forward"),
    ("right", "down", "outward"),
    ("right", "up", "across"),
    ("right", "straight", "sideways"),
)
"""Side, height and direction of each held-out intent. All of these words also occur in training intents."""


@dataclass(frozen=True)
class Intent:
    """A sentence and its meaning."""

    text: str
    side: str
    direction: tuple[float, float, float]
    """Direction of the arm as a unit vector."""

    def target(self) -> Tensor:
        """Return the hand's target position, (3,), in metres, at 95 % of the arm's length from the shoulder."""
        return _rest_positions()[JOINT_INDEX[f"{self.side}_shoulder"]] + 0.95 * ARM_M * torch.tensor(self.direction)


@lru_cache
def _rest_positions() -> Tensor:
    """Return the joint positions of a resting body, (24, 3)."""
    return positions(torch.zeros(DIMS))


def _build_intent(side: str, height: str, direction: str) -> Intent:
    sideways, forward = DIRECTIONS[direction]
    x, y, z = SIDES[side] * sideways, HEIGHTS[height], forward
    length = math.sqrt(x * x + y * y + z * z)
    return Intent(f"reach {height} {direction} with the {side} hand", side, (x / length, y / length, z / length))


INTENTS = {intent.text: intent for intent in (_build_intent(*words) for words in product(SIDES, HEIGHTS, DIRECTIONS))}
EVALUATION_TEXTS = tuple(_build_intent(*words).text for words in HELD_OUT_WORDS)
TRAINING_TEXTS = tuple(text for text in INTENTS if text not in EVALUATION_TEXTS)
