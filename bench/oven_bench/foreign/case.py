"""The contract between the bench and a foreign script: what the script is given, and what it returns.

A script has `train(case, link=None, *, attached=True) -> Result`. Without `attached` it must not touch the controller
at all; with a `link` it hands that link to `attach` or `connect`, and without one they find the running stack.

A script may have `prepare(case)` as well, for what it makes once in a process and keeps, e.g. a warm policy. The bench
calls it first: neither arm is charged for it, and no optimizer in it is taken for the training's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, get_args

from oven_learner.link.base import Link

Optimizer = Literal["adamw", "sgd", "adafactor"]
Schedule = Literal["linear", "cosine", "constant"]
CHOICES: dict[str, tuple[str, ...]] = {"optimizer": get_args(Optimizer), "schedule": get_args(Schedule)}


@dataclass(frozen=True)
class Case:
    """One training, as its author would set it up."""

    optimizer: Optimizer = "adamw"
    lr: float = 1e-3
    """Peak of the schedule."""
    schedule: Schedule = "linear"
    warmup: float = 0.0
    """Share of the steps."""
    width: int = 64
    init_std: float = 0.02
    seed: int = 100
    steps: int = 250

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup * self.steps)


@dataclass(frozen=True)
class Result:
    """The held-out metric after the last step."""

    final: float
    metric: str
    better: Literal["up", "down"]


class Train(Protocol):
    """The function `train` of a script."""

    def __call__(self, case: Case, link: Link | None = None, *, attached: bool = True) -> Result: ...


def command_line(about: str, train: Train, default: Case, args: Sequence[str] | None = None) -> None:
    """A script's `main`: one option per field of Case. It trains under the stack if there is one, else alone."""
    parser = argparse.ArgumentParser(description=about)
    for field in fields(Case):
        value = getattr(default, field.name)
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=type(value), default=value, choices=CHOICES.get(field.name))
    case = replace(default, **vars(parser.parse_args(args)))
    result = train(case, attached="OVEN_RUN" in os.environ)
    print(f"{result.metric} {result.final:.5f} ({result.better} is better)")
