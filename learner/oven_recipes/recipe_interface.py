"""The interface of recipes, entry points of the group `oven.recipes`. Only their `load_training` imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import UnknownNameError
from oven_runs.settings import resolution


@dataclass(frozen=True)
class TrainingRequest:
    """A request from `up` to train a recipe."""

    start: str
    seed: int
    steps: int | None
    """Number of optimizer steps. None means the recipe's default."""
    seconds: float | None
    """Maximum duration of the training, or None for no limit."""
    options: dict[str, Any]
    """The recipe's settings, before `Recipe.settings_model` validates them."""
    folder: Path
    """The run's folder. Checkpoints are written to its subfolder `checkpoints`."""
    cache: Path
    """Cache folder shared between runs."""
    resume: bool = False
    """Whether to continue from the newest checkpoint in the run's folder."""


class Recipe(resolution.Recipe, Protocol):
    """A recipe. `resolution.Recipe` declares the settings and starts, and this class adds the training."""

    @property
    def name(self) -> str:
        """The recipe's name in the log and in the entry points."""

    def load_training(self) -> Callable[[TrainingRequest], None]:
        """Import what the training needs, such as torch, and return the function that trains to the end. Environment
        variables contain the address of the controller."""


LR_BOUNDS = (0.01, 100.0)
"""Bounds of the learning-rate knob. They are so wide that they do not reveal a random start to an agent."""
BETA_BOUNDS = (0.01, 10.0)  # bounds of the knob for the weight of the KL term


class RecipeSettings(BaseModel):
    """The settings that all recipes share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_grad_norm: float = Field(default=1.0, gt=0)


@dataclass(frozen=True)
class Start:
    """The named starting point of a run. `label` describes the fault that a drill plants, and is otherwise empty."""

    name: str
    learning_rate: float
    label: str = ""

    def describe(self) -> str:
        """Return a one-line description for people. Agents never see it."""
        return f"learning rate {self.learning_rate:.3g}"


LR_STARTS = {
    "tuned": "",
    "drill:lr-low": "the learning rate is set to 1/10 of the tuned one",
    "drill:lr-high": "the learning rate is set to 10 times the tuned one",
}
"""The starts that only set the learning rate, and what is wrong with each."""


def learning_rate_start(text: str, tuned: float) -> tuple[str, float, str]:
    """Return the name, learning rate and label of the start `text`, one of LR_STARTS. `tuned` is the recipe's tuned
    learning rate."""
    factor = {"drill:lr-low": 0.1, "drill:lr-high": 10.0}.get(text, 1.0)
    return text, tuned * factor, LR_STARTS[text]


def no_such_start(text: str, starts: Iterable[str]) -> ValueError:
    """Return the error for an unknown start. Its message lists similar names, or all of `starts`."""
    return ValueError(str(UnknownNameError("start", text, starts)))
