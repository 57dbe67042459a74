"""The trainings to play: kinds of script, optimizers, starts and model sizes, spread as in a Latin square."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oven_bench.foreign.case import Case, Optimizer, Schedule
from oven_core.errors import ConfigError

WIDTHS: Final = (32, 64, 128, 256)
INIT_STDS: Final = (0.005, 0.02, 0.05)
STARTS: Final = {"tuned": 1.0, "high": 10.0, "low": 0.1}
"""Start → its learning rate as a multiple of the tuned one."""


@dataclass(frozen=True)
class Kind:
    """A script with one schedule."""

    name: str
    script: str
    schedule: Schedule
    warmup: float
    steps: int
    centres: dict[Optimizer, float]
    """The optimizers, and for each the rate around which the tuned rate was searched."""


KINDS: Final = (
    Kind("clm-warmup", "clm_trainer", "linear", 0.05, 250, {"adamw": 2e-3, "sgd": 0.1, "adafactor": 5e-3}),
    Kind("clm-plain", "clm_trainer", "linear", 0.0, 250, {"adamw": 2e-3, "sgd": 0.1, "adafactor": 5e-3}),
    Kind("nanogpt-cosine", "nanogpt_loop", "cosine", 0.05, 250, {"adamw": 4e-3, "sgd": 0.15, "adafactor": 0.1}),
    Kind("nanogpt-constant", "nanogpt_loop", "constant", 0.0, 250, {"adamw": 4e-3, "sgd": 0.15, "adafactor": 0.1}),
    Kind("grpo", "grpo_evaluated", "constant", 0.0, 120, {"adamw": 1e-3, "sgd": 0.01, "adafactor": 1e-3}),
    Kind("two-trainers", "two_trainers", "linear", 0.05, 240, {"adamw": 3e-3, "sgd": 0.1, "adafactor": 3e-3}),
    Kind("accelerate", "accelerate_loop", "cosine", 0.05, 250, {"adamw": 0.02, "sgd": 1.0, "adafactor": 0.3}),
)


@dataclass(frozen=True)
class Cell:
    """Everything about a training but its seed."""

    kind: Kind
    optimizer: Optimizer
    start: str
    width: int
    init_std: float

    @property
    def name(self) -> str:
        return f"{self.kind.name}/{self.optimizer}"

    def case(self, seed: int, rate: float, steps: int | None = None) -> Case:
        """The training with this seed. `rate` is the tuned one; the start multiplies it."""
        kind = self.kind
        return Case(
            self.optimizer,
            rate * STARTS[self.start],
            kind.schedule,
            kind.warmup,
            self.width,
            self.init_std,
            seed,
            steps or kind.steps,
        )


def cells(only: Sequence[str] = (), starts: Sequence[str] = tuple(STARTS)) -> list[Cell]:
    """The cells of these starts whose name (kind/optimizer) begins with a prefix in `only`, or all. Raises ConfigError
    if there are none."""
    chosen = [cell for cell in _all() if cell.start in starts and (not only or cell.name.startswith(tuple(only)))]
    if not chosen:
        known = ", ".join(dict.fromkeys(cell.name for cell in _all()))
        raise ConfigError(f"nothing begins with {' or '.join(only)}; --only takes beginnings of: {known}")
    return chosen


def _all() -> Iterator[Cell]:
    """Each optimizer meets all widths and deviations, and each kind three widths and all deviations. All starts of a
    kind and an optimizer have the same model, so that they can be compared and each model is tuned once."""
    for row, kind in enumerate(KINDS):
        for column, optimizer in enumerate(kind.centres):
            width = WIDTHS[(row + column) % len(WIDTHS)]
            std = INIT_STDS[(row + 2 * column) % len(INIT_STDS)]
            yield from (Cell(kind, optimizer, start, width, std) for start in STARTS)
