"""The entry point of the recipe `oracle` for `up`."""

from oven_recipes.oracle.settings import OracleSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe("oracle", "tuned", OracleSettings, parse_start, "oven_recipes.oracle.training_job:build_judged")
