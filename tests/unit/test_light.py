"""What must stay light, stays light: each is imported in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "datasets", "numpy", "textual", "openai", "anthropic")


@pytest.mark.parametrize(
    "modules",
    [
        "oven_agents, oven_agents.host, oven_agents.learning_rate, oven_agents.curriculum",
        "oven_controller.mesh.service, oven_controller.replay",
        "oven_controller.cli.main, oven_controller.stack.up",
        "oven_learner, oven_learner.recipes.grpo.recipe, oven_learner.loop, oven_learner.bench.starts",
    ],
)
def test_importing_it_pulls_in_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
