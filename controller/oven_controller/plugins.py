"""Plug-ins by entry points: agents, recipes, processes and more. Listing names imports none of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from oven_controller.errors import ConfigError, UnknownNameError


def points(group: str) -> dict[str, EntryPoint]:
    """Entry points of `oven.<group>` by name, in the order of their names."""
    return {point.name: point for point in sorted(entry_points(group=f"oven.{group}"), key=lambda p: p.name)}


def load(group: str, kind: str, name: str) -> Any:
    """The object called `name`. Raises UnknownNameError with the nearest names, ConfigError when importing it fails."""
    found = points(group)
    if name not in found:
        raise UnknownNameError(kind, name, found)
    point = found[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the {kind} {name!r} ({point.value}) cannot be imported: {error}; "
            'is its extra installed? `pip install "oven-controller[all]"` has everything'
        ) from error
