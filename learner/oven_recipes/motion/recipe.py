"""The entry point of the recipe `motion` for `up`. Only `train` imports torch."""

from __future__ import annotations

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

    def train(self, request: TrainingRequest) -> None:
        from oven_recipes.motion.training import train

        train(request)


RECIPE = MotionRecipe()
