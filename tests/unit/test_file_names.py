"""A file's name stands once in a package; only parts that are built alike share theirs."""

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALIKE = {
    "controller/oven_controller": {
        # A command's file has the command's name, and what it starts or reads has its own.
        "doctor", "log", "replay", "up",
    },
    "agents/oven_agents": set[str](),
    "kg/oven_kg": set[str](),
    "tui/oven_tui": set[str](),
    "learner/oven_learner": {"evaluation", "job", "model", "recipe", "rewards", "settings"},  # of the recipes
    "bench/oven_bench": {"command", "trainee"},  # of a bench that has a folder, and of the gym's tasks
}  # fmt: skip
"""The names that parallel parts of a package share."""


@pytest.mark.parametrize("package", ALIKE)
def test_only_parallel_parts_share_file_names(package: str) -> None:
    places = defaultdict(list)
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.stem != "__init__":
            places[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in ALIKE[package]} == {}
