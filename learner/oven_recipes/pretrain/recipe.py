"""The recipe as `up` uses it: names and settings without torch, and `train`, which imports torch."""

from __future__ import annotations

from oven_recipes.base import Order
from oven_recipes.pretrain.settings import PretrainSettings, Start, parse_start


class PretrainRecipe:
    """Pretraining on a folder of text (see the package's docstring)."""

    name = "pretrain"
    default_start = "drill:lr-low"
    settings_model = PretrainSettings

    def parse_start(self, text: str, seed: int, options: PretrainSettings) -> Start:
        return parse_start(text, seed)

    def train(self, order: Order) -> None:
        from oven_recipes.pretrain.job import build
        from oven_recipes.runner import train

        train(self, order, build)


RECIPE = PretrainRecipe()
