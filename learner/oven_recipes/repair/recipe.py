"""The entry point of the recipe `repair` for `up`."""

from oven_recipes.repair.settings import STARTS, RepairSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe("repair", "tuned", STARTS, RepairSettings, parse_start, "oven_recipes.repair.training_job:build")
