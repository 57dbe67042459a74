"""The environment `repair` behind OpenEnv gives the traces that it gives in this process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.unit.learner.test_trace_recorder import TASKS, recorded, shown

from oven_controller.errors import ConfigError
from oven_learner.environments.openenv_client import served
from oven_learner.recipes.repair.demonstrations import Habits

MISSING = find_spec("openenv") is None


@pytest.mark.skipif(MISSING, reason="the extra openenv is not installed: it cannot be beside the extra mcp")
def test_the_traces_are_the_same(tmp_path: Path) -> None:
    script = shown(Habits(right=0.5, runs_tests=1.0))
    with served(TASKS) as environment:
        behind = recorded(tmp_path, script, environment)
    assert behind == recorded(tmp_path, script)
    assert {one.ended for one in behind} == {"submitted"}


@pytest.mark.skipif(not MISSING, reason="the extra openenv is installed")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r'pip install "oven-controller\[openenv\]"'), served(TASKS):
        pass
