"""What the bench gives to a foreign script, and what the script returns.

A script has `train(case, link=None, *, attached=True) -> Result`. Without `attached` it must not use the controller at
all. With a `link` it passes that link to `attach` or `connect`; without one, they find the running stack.

A script may also have `prepare(case)` for what it makes once per process, such as a pretrained policy. The bench calls
it before `train`, does not count its time, and ignores its optimizers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import click

from oven_learner.link.link_interface import Link

Optimizer = Literal["adamw", "sgd", "adafactor"]
Schedule = Literal["linear", "cosine", "constant"]


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

    @click.command(help=about, context_settings={"show_default": True})
    @click.option("--optimizer", type=click.Choice(get_args(Optimizer)), default=default.optimizer)
    @click.option("--lr", default=default.lr, help="Peak of the schedule.")
    @click.option("--schedule", type=click.Choice(get_args(Schedule)), default=default.schedule, help="Of the rate.")
    @click.option("--warmup", default=default.warmup, help="Share of the steps.")
    @click.option("--width", default=default.width)
    @click.option("--init-std", default=default.init_std)
    @click.option("--seed", default=default.seed)
    @click.option("--steps", default=default.steps)
    def script(**fields: Any) -> None:
        result = train(Case(**fields), attached="OVEN_RUN" in os.environ)
        print(f"{result.metric} {result.final:.5f} ({result.better} is better)")

    script(args=args)
