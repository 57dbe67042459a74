"""The families of faults that the gym plays: about twenty of each task, healthy runs that only look ill among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from oven_bench.gym.fault import Fault

MODULES = ("grpo_rewards", "grpo_training", "pretraining_data", "pretraining_training")


@cache
def families() -> Mapping[str, type[Fault]]:
    """All families by name, sorted by name."""
    modules = [import_module(f"{__name__}.{module}") for module in MODULES]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    by_name = {family.name: family for family in classes if issubclass(family, Fault) and "name" in vars(family)}
    return dict(sorted(by_name.items()))
