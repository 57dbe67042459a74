"""The entry point of the recipe `grpo` for `up`."""

from oven_recipes.grpo.settings import STARTS, GrpoSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe("grpo", "tour", STARTS, GrpoSettings, parse_start, "oven_recipes.grpo.training_job:build_judged")
