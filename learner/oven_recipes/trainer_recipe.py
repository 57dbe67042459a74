"""A recipe that trains with a trainer from transformers or TRL. This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from oven_recipes.recipe_interface import Start, TrainingRequest


@dataclass(frozen=True)
class TrainerRecipe:
    """A recipe that builds a training job, and lets the job's trainer train. Only `load_training` imports torch."""

    name: str
    default_start: str
    starts: Mapping[str, str]
    """The names of the starts, and what is wrong with each."""
    settings_model: type[BaseModel]
    start_parser: Callable[[str, int, Any], Start]
    """Parses the name of a start, given a seed and settings."""
    build: str
    """Path of the function that builds the training job, as `module:function`, of the type `training_runner.Build`."""

    def parse_start(self, text: str, seed: int, options: Any) -> Start:
        return self.start_parser(text, seed, options)

    def load_training(self) -> Callable[[TrainingRequest], None]:
        from oven_recipes.training_runner import train

        module, _, function = self.build.partition(":")
        return partial(train, self, build=getattr(import_module(module), function))
