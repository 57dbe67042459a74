"""The recipe as `up` uses it: names and settings without torch, and `train`, which imports torch."""

from __future__ import annotations

from oven_recipes.base import Order
from oven_recipes.repair.settings import RepairSettings, Start, parse_start


class RepairRecipe:
    """GRPO of a policy that repairs functions by tools (see the package's docstring)."""

    name = "repair"
    default_start = "tuned"
    settings_model = RepairSettings

    def parse_start(self, text: str, seed: int, options: RepairSettings) -> Start:
        return parse_start(text)

    def train(self, order: Order) -> None:
        from oven_recipes.repair.job import build
        from oven_recipes.runner import train

        train(self, order, build)


RECIPE = RepairRecipe()
