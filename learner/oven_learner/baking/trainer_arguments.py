"""The arguments of `bake` that are left for a trainer's configuration, checked by name, and how often to save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oven_core.errors import ConfigError, UnknownNameError


def check_names(given: Mapping[str, Any], known: Iterable[str], called: Mapping[str, str], owner: str) -> None:
    """`called`: the names of `owner`'s fields that `bake` calls otherwise. Raises ConfigError for one of these, and
    UnknownNameError for one that `owner` does not have."""
    names = set(known)
    for name in given:
        if name in called:
            raise ConfigError(f"{name}= is called {called[name]}= here")
        if name not in names:
            raise UnknownNameError(f"argument of bake() or of {owner}", name, names)


def save_steps(total_steps: int) -> int:
    """Steps between checkpoints, at most TRL's 500: a run of any length can be resumed, and repeats a tenth at most."""
    return max(1, min(500, total_steps // 10))
