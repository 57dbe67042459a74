"""A configuration: a trainer, and how it is trained. The table of them is a Python file or package with the variable
`CONFIGURATIONS`, a sequence of Configuration with unique names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from oven_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import Trainer

Make: TypeAlias = "Callable[[Path], Trainer]"
"""Makes a trainer, with its model and data, that writes into the folder."""
Attach: TypeAlias = "Callable[[Trainer], object]"
"""Attaches a trainer, or does nothing. It is called once for each trainer, before `train()`."""


def once(folder: Path, make: Make, attach: Attach) -> Trainer:
    """Call `train()` once."""
    trainer = make(folder)
    attach(trainer)
    trainer.train()
    return trainer


def resumed(folder: Path, make: Make, attach: Attach) -> Trainer:
    """Train to the end, then train a new trainer from the first checkpoint of the first."""
    once(folder, make, attach)
    trainer = make(folder)
    attach(trainer)
    first = min(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    trainer.train(resume_from_checkpoint=str(first))
    return trainer


def repeated(folder: Path, make: Make, attach: Attach) -> Trainer:
    """Call `train()` of one trainer twice."""
    trainer = once(folder, make, attach)
    trainer.train()
    return trainer


@dataclass(frozen=True)
class Configuration:
    """One trainer with its settings."""

    name: str
    """TRAINER/OPTION, e.g. grpo/loss_dr_grpo."""
    make: Make
    train: Callable[[Path, Make, Attach], Trainer] = once
    """Trains, and returns the trainer whose results are compared."""
    on_purpose: str = ""
    """Why an attached run differs on purpose. Such a configuration counts neither as equal nor as a failure."""


DEFAULT = Path(__file__).resolve().parents[3] / "tests" / "foreign" / "trl_configurations"
"""The table in a checkout. An installed package has none."""


@lru_cache
def load(path: Path) -> tuple[Configuration, ...]:
    """The configurations of the table at `path`, a Python file or the folder of a package.

    Raises ConfigError if there is none, or two have the same name.
    """
    path = path.resolve()
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"no table of configurations at {path}; pass --table with tests/foreign/trl_configurations")
    name = f"oven_bench_{path.stem}"
    folders = [str(path)] if path.is_dir() else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its own modules are imported by this name
    spec.loader.exec_module(module)
    configurations: Sequence[Configuration] | None = getattr(module, "CONFIGURATIONS", None)
    if not configurations:
        raise ConfigError(f"{file} has no CONFIGURATIONS, a sequence of Configuration")
    names = [each.name for each in configurations]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise ConfigError(f"{file} has more than one configuration named {', '.join(twice)}")
    return tuple(configurations)
