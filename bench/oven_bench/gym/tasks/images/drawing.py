"""Pictures of eight classes: strokes, crosses, rings and discs of any place and size, under noise."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from oven_bench.gym.seeded_draws import generator

SIDE = 16
"""Pixels."""
CLASSES = ("level", "upright", "rising", "falling", "plus", "times", "ring", "disc")
ANGLES = (0.0, 90.0, 45.0, -45.0, 0.0, 45.0, 0.0, 0.0)
"""Degrees of a class's first stroke."""
TILT, AWAY = 14.0, 3.0
"""How far at most a stroke is turned (degrees), and a shape lies off the middle (pixels)."""
NOISE = 0.5
"""Standard deviation of a pixel's noise; ink is 1 at most."""
GAUGED, JUDGED = 256, 1024
"""Held-out pictures behind the run's own evaluation, and behind the score."""


class Pictures(NamedTuple):
    pixels: Tensor  # float32 [B, 1, SIDE, SIDE]
    labels: Tensor  # int64 [B]


def drawn(count: int, draws: torch.Generator) -> Pictures:
    """Of classes drawn uniformly."""

    def between(low: float, high: float) -> Tensor:  # [B, 1, 1]
        return low + (high - low) * torch.rand(count, 1, 1, generator=draws)

    labels = torch.randint(len(CLASSES), (count,), generator=draws)
    at = torch.arange(SIDE) - (SIDE - 1) / 2
    x, y = at.view(1, 1, SIDE) - between(-AWAY, AWAY), at.view(1, SIDE, 1) - between(-AWAY, AWAY)
    angle = (torch.tensor(ANGLES)[labels].view(-1, 1, 1) + between(-TILT, TILT)) * (math.pi / 180)
    size, thick, ink = between(3.0, 5.5), between(0.6, 1.2), between(0.6, 1.0)
    along, across = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    stroke, other = torch.maximum(across.abs(), along.abs() - size), torch.maximum(along.abs(), across.abs() - size)
    radius = (x.square() + y.square()).sqrt()
    kind = labels.view(-1, 1, 1)
    distance = torch.where(kind < 4, stroke, torch.minimum(stroke, other))
    distance = torch.where(kind == 6, (radius - size).abs(), distance)
    distance = torch.where(kind == 7, radius - size, distance)
    pixels = ink * ((thick - distance) * 3).sigmoid() + NOISE * torch.randn(count, SIDE, SIDE, generator=draws)
    return Pictures(pixels.unsqueeze(1), labels)


@cache
def held_out(of: str, count: int) -> Pictures:
    """The same for every seed. Not to be written to."""
    return drawn(count, generator("held-out pictures", of))
