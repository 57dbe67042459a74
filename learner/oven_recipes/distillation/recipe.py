"""The entry point of the recipe `distillation` for `up`."""

from oven_recipes.distillation.settings import STARTS, DistillationSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe(
    "distillation", "tuned", STARTS, DistillationSettings, parse_start, "oven_recipes.distillation.training_job:build"
)
