"""Check the arguments that `bake` passes to a trainer's configuration, and choose how often to save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError


def check_names(arguments: Mapping[str, Any], known: Iterable[str], called: Mapping[str, str], owner: str) -> None:
    """Check argument names. `called` maps `owner`'s fields to their names in `bake`.

    Raises ConfigError for a field that `bake` renames, and UnknownNameError for an unknown one.
    """
    names = set(known)
    for name in arguments:
        if name in called:
            raise ConfigError(f"{name}= is called {called[name]}= here")
        if name not in names:
            raise UnknownNameError(f"argument of bake() or of {owner}", name, names)


def save_steps(total_steps: int) -> int:
    """Return the steps between checkpoints: a tenth of the run, at most TRL's 500. A resumed run repeats at most a
    tenth."""
    return max(1, min(500, total_steps // 10))
