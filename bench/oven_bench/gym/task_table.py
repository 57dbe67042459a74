"""The gym's tasks: what it trains. Adding one is a folder under `tasks/` and a line in `TASKS`.

A folder's package declares its task (`TASK`), and holds the trainee and, for tasks of the trials set, the families of
faults. Declarations are imported when asked for, and trainees when one is made: a task that is not
played costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from oven_core.errors import ConfigError, UnknownNameError

Kind = str
"""A task's name, in `TASKS`: of a trainee, and of the faults that act on it."""

TASKS: Mapping[Kind, str] = {
    "pretraining": "oven_bench.gym.tasks.pretraining",
    "grpo": "oven_bench.gym.tasks.grpo",
    "wide": "oven_bench.gym.tasks.wide",
    "images": "oven_bench.gym.tasks.images",
    "dpo": "oven_bench.gym.tasks.dpo",
    "long_grpo": "oven_bench.gym.tasks.long_grpo",
}
"""Name → the package that declares it."""
USUAL: tuple[Kind, ...] = ("pretraining", "grpo")
"""What is played unless others are asked for (`gym --tasks`): the tasks of all published figures."""
DEVELOPED_ON: tuple[Kind, ...] = ("pretraining", "grpo")
"""The tasks on which the agents' constants were set. What the others show, no constant was fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the gym has to know of a task beside its trainee."""

    trainee: str
    """`module:Class`; the class is made with a seed."""
    faults: str
    """The module or package of its families."""
    noise: float
    """What two healthy runs that differ by chance alone differ by, as a share of `size`."""
    shown: str
    """The metric that says at a glance how a step went."""
    share_of_answers: bool = False
    """Whether `quality` is a share of wrong answers, within 0 to 1, and not a loss."""

    def size(self, loss: float) -> float:
        """What a difference of losses is a share of: the loss. Where that is a share of wrong answers it is all
        answers: of a task that is nearly solved the loss is near 0, and a share of it would be noise."""
        return 1.0 if self.share_of_answers else loss


@cache
def task(kind: Kind) -> Task:
    """The declaration of a task. Raises UnknownNameError, and ConfigError for a package that declares none."""
    if kind not in TASKS:
        raise UnknownNameError("task of the gym", kind, TASKS)
    declared = getattr(import_module(TASKS[kind]), "TASK", None)
    if not isinstance(declared, Task):
        raise ConfigError(f"{TASKS[kind]} declares no task: give it a TASK = Task(…) (oven_bench.gym.task_table)")
    return declared
