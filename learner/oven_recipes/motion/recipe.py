"""The entry point of the recipe `motion` for `up`. Only `load_training` imports torch."""

from __future__ import annotations

from collections.abc import Callable

from oven_recipes.motion.settings import STARTS, MotionSettings, Start, parse_start
from oven_recipes.recipe_interface import TrainingRequest


class MotionRecipe:
    """The recipe `motion`, which trains a policy on clips of a skeleton."""

    name = "motion"
    default_start = "tuned"
    starts = STARTS
    settings_model = MotionSettings

    def parse_start(self, text: str, seed: int, options: MotionSettings) -> Start:
        return parse_start(text)

    def load_training(self) -> Callable[[TrainingRequest], None]:
        from oven_recipes.motion.training import train

        return train


RECIPE = MotionRecipe()
