"""All families of faults: those of the gym's tasks, and those that are plugged in under `oven.faults`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType

from oven_bench.gym.fault import Fault
from oven_bench.gym.task_table import TASKS, task
from oven_core import plugins
from oven_core.errors import ConfigError

GROUP = "faults"
"""Of entry points: each names a class made by `@fault`, or a module or package of such classes."""


def families() -> Mapping[str, type[Fault]]:
    """By name, in the order of the names. Raises ConfigError for a name that two families have, and for an entry point
    that is not a family and holds none."""
    found: dict[str, type[Fault]] = {}
    for family in (*_of_tasks(), *_plugged_in()):
        other = found.setdefault(family.name, family)
        if other is not family:
            raise ConfigError(
                f"two families of faults are called {family.name!r}, {_place(other)} and {_place(family)}; rename one"
            )
    return dict(sorted(found.items()))


def within(module: ModuleType) -> Iterator[type[Fault]]:
    """The families that a module defines, or all modules of a package."""
    for one in vars(module).values():
        if _is_family(one) and one.__module__ == module.__name__:
            yield one
    for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from within(import_module(f"{module.__name__}.{inner.name}"))


def _of_tasks() -> Iterator[type[Fault]]:
    for kind in TASKS:
        yield from within(import_module(task(kind).faults))


def _plugged_in() -> Iterator[type[Fault]]:
    for point in plugins.points(GROUP):
        loaded = plugins.load(GROUP, "family of faults", point)
        made = [loaded] if _is_family(loaded) else [*within(loaded)] if isinstance(loaded, ModuleType) else []
        if not made:
            raise ConfigError(
                f"the entry point {point!r} of oven.{GROUP} is no family of faults and no module with one; "
                "make a class of Fault with @fault (oven_bench.gym.fault)"
            )
        yield from made


def _is_family(one: object) -> bool:
    """Made by `@fault` itself, and not a class that inherits from one that is."""
    return isinstance(one, type) and issubclass(one, Fault) and "name" in vars(one)


def _place(family: type[Fault]) -> str:
    return f"{family.__module__}.{family.__qualname__}"
