"""The recipe for `up`: names and settings without torch, and `train`, which imports it."""

from __future__ import annotations

from oven_recipes.base import Order
from oven_recipes.distillation.settings import DistillationSettings, Start, parse_start


class DistillationRecipe:
    """On-policy distillation on a sorting task (see the package's docstring)."""

    name = "distillation"
    default_start = "tuned"
    settings_model = DistillationSettings

    def parse_start(self, text: str, seed: int, options: DistillationSettings) -> Start:
        return parse_start(text)

    def train(self, order: Order) -> None:
        from oven_recipes.distillation.job import build
        from oven_recipes.runner import train

        train(self, order, build)


RECIPE = DistillationRecipe()
