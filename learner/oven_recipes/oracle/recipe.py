"""The entry point of the recipe `oracle` for `up`."""

from oven_recipes.oracle.settings import STARTS, OracleSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe(
    "oracle", "tuned", STARTS, OracleSettings, parse_start, "oven_recipes.oracle.training_job:build_judged"
)
