"""What a recipe is: an entry point of the group `oven.recipes`. Importing one needs no torch; training with it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel


@dataclass(frozen=True)
class Order:
    """What `up` asks of a recipe."""

    start: str
    seed: int
    steps: int | None
    """Optimizer steps; None: the recipe's own number."""
    seconds: float | None
    options: dict[str, Any]
    folder: Path
    """The run's folder; checkpoints go to `checkpoints/` in it."""
    cache: Path
    """Shared between runs."""
    resume: bool = False


class Recipe(Protocol):
    name: str
    default_start: str
    settings_model: type[BaseModel]

    def parse_start(self, text: str, seed: int, options: Any) -> Any:
        """The start called `text`, under these options (a `settings_model`). It has `name`, `label` (empty unless it
        is a drill) and `describe()`.

        Raises ValueError with the nearest names.
        """

    def train(self, order: Order) -> None:
        """Train to the end, attached to the controller that the environment names."""
