"""The entry point of the recipe `pretrain` for `up`."""

from oven_recipes.pretrain.settings import STARTS, PretrainSettings, parse_start
from oven_recipes.trainer_recipe import TrainerRecipe

RECIPE = TrainerRecipe(
    "pretrain", "drill:lr-low", STARTS, PretrainSettings, parse_start, "oven_recipes.pretrain.training_job:build"
)
