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
from typing import Annotated, Literal, Protocol, cast, get_args

from typer import Option, Typer

from oven_bench.study import one_of
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

    def script(
        optimizer: Annotated[str, one_of(get_args(Optimizer), "The optimizer.")] = default.optimizer,
        lr: Annotated[float, Option(help="Peak of the schedule.")] = default.lr,
        schedule: Annotated[str, one_of(get_args(Schedule), "Of the rate.")] = default.schedule,
        warmup: Annotated[float, Option(help="Share of the steps.")] = default.warmup,
        width: int = default.width,
        init_std: float = default.init_std,
        seed: int = default.seed,
        steps: int = default.steps,
    ) -> None:
        case = Case(cast(Optimizer, optimizer), lr, cast(Schedule, schedule), warmup, width, init_std, seed, steps)
        result = train(case, attached="OVEN_RUN" in os.environ)
        print(f"{result.metric} {result.final:.5f} ({result.better} is better)")

    app = Typer(add_completion=False)
    app.command(help=about)(script)
    app(args=args)
