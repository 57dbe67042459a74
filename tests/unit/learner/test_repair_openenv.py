"""The environment `repair` behind OpenEnv gives the traces that it gives in this process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.learner.test_trace_recorder import TASKS, recorded, shown

from oven_core.errors import ConfigError
from oven_recipes.environments.openenv_client import OpenEnvRepair, serve
from oven_recipes.environments.repair_environment import RepairEnvironment
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.environments.repair_task_generator import TrustedTests
from oven_recipes.repair.demonstrations import Habits

MISSING = find_spec("openenv") is None


@pytest.mark.skipif(MISSING, reason="the extra openenv is not installed: it cannot be beside the extra mcp")
def test_the_traces_are_the_same(tmp_path: Path) -> None:
    script = shown(Habits(correct_edit=0.5, run_tests=1.0))
    with serve(TASKS) as environment:
        behind = recorded(tmp_path, script, environment)
    assert behind == recorded(tmp_path, script)
    assert {trace.ended for trace in behind} == {"submitted"}


class Client:
    """OpenEnv's client without its wire: observations as its server gives them."""

    def __init__(self) -> None:
        self._session = RepairSession(TASKS[0], TASKS[0].files, TrustedTests())

    def _seen(self, **fields: Any) -> Any:
        session = self._session
        seen = {"solved": session.solved, "feedback": session.feedback, "digest": session.digest, **fields}
        return SimpleNamespace(observation=seen, reward=0.0)

    def reset(self, instance_id: str) -> Any:
        return self._seen(text="", failed=False)

    def step(self, action: dict[str, Any]) -> Any:
        result = self._session.call(action["tool"], action["arguments"])
        return self._seen(text=result.text, failed=result.failed)


def test_the_policy_may_be_told_which_tests_fail_behind_openenv_too() -> None:
    behind, here = (
        OpenEnvRepair(Client()),
        RepairEnvironment({TASKS[0].instance_id: TASKS[0]}, lambda task: task.files, TrustedTests()),
    )
    for environment in (behind, here):
        environment.reset(instance_id=TASKS[0].instance_id)
        failing = environment.feedback
        environment.submit()
        assert environment.feedback == failing and failing is not None and failing.startswith("failed: test_")


@pytest.mark.skipif(not MISSING, reason="the extra openenv is installed")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r'pip install "oven-controller\[openenv\]"'), serve(TASKS):
        pass
