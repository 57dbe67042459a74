"""The entry point of the recipe `pretrain` for `up`."""

from oven_recipes.pretrain.settings import PretrainSettings, parse_start
from oven_recipes.trained_recipe import TrainedRecipe

RECIPE = TrainedRecipe(
    "pretrain", "drill:lr-low", PretrainSettings, parse_start, "oven_recipes.pretrain.training_job:build"
)
