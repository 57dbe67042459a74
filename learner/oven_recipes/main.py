"""The main function of the learner process that `oven-controller up` starts. It runs the recipe in config.json."""

from __future__ import annotations

import json
import logging
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_learner.rollback.checkpoint_record import all_checkpoints, find_defect
from oven_recipes.recipe_interface import Recipe, TrainingRequest
from oven_runs.home.run_folder import PREPARING
from oven_runs.process.child_process import wait_until_released

log = logging.getLogger(__name__)


def main(args: list[str]) -> int:
    """Train the recipe that config.json in the run's folder names. Raises ConfigError if the file cannot be read, if
    there is no such recipe, or if a package that it needs is not installed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = Path(os.environ["OVEN_RUN_DIR"])
    recipes = {point.name: point for point in entry_points(group="oven.recipes")}
    name = _read_settings(folder)["recipe"]
    if name not in recipes:
        raise UnknownNameError("recipe", name, recipes)
    log.info("%sloading the recipe %s", PREPARING, name)
    recipe: Recipe = recipes[name].load()
    try:
        train = recipe.load_training()
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the recipe {name!r} needs the package {error.name!r}, which is not installed; "
            '`pip install "oven-controller[recipes]"` installs the packages of the shipped recipes'
        ) from error
    wait_until_released()
    settings = _read_settings(folder)  # the stack has meanwhile added rules
    train(
        TrainingRequest(
            start=settings["start"],
            seed=settings["seed"],
            steps=settings["steps"],
            seconds=60 * settings["minutes"] if settings["minutes"] else None,
            options=settings["recipe_options"],
            folder=folder,
            cache=folder.parent.parent / "cache",  # next to the folder `runs`
            resume=any(not find_defect(path) for path in all_checkpoints(folder / "checkpoints")),
        )
    )
    return 0


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {reason(error)}") from error
    return settings
