"""The recipe for `up`: names and settings without torch, and `train`, which imports it."""

from __future__ import annotations

from oven_recipes.base import Order
from oven_recipes.grpo.settings import GrpoSettings, Start, parse_start


class GrpoRecipe:
    """GRPO on a sorting task (see the package's docstring)."""

    name = "grpo"
    default_start = "drill:lr-low"
    settings_model = GrpoSettings

    def parse_start(self, text: str, seed: int, options: GrpoSettings) -> Start:
        return parse_start(text, seed, options.levels)

    def train(self, order: Order) -> None:
        from oven_recipes.grpo.job import build_judged
        from oven_recipes.runner import train

        train(self, order, build_judged)


RECIPE = GrpoRecipe()
