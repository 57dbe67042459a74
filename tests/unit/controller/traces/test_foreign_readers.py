"""What is written is read by OpenEnv's and verifiers' own readers, where these are installed.

Neither fits beside the project's pins: OVEN_OPENENV_PYTHON and OVEN_VERIFIERS_PYTHON name the Python of an environment
that has one (pip install openenv==0.10.0, verifiers==0.4.0).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.traces import REPAIR

from oven_runs.traces.formats.table import format_named
from oven_runs.traces.records import Message, Trace

OPENENV = """
import json, sys
from openenv.core.harness.collect import EpisodeRecord, RolloutSerializer
serializer = RolloutSerializer(sys.argv[1])
rows = [json.loads(line) for line in serializer.results_path.open()]
same = [EpisodeRecord(**row).to_dict() == row for row in rows]
print(json.dumps({"ids": sorted(serializer.collected_episode_ids()), "same": same}))
"""
VERIFIERS = """
import json, sys
from pathlib import Path
from verifiers.v1.trace import WireTrace
from verifiers.v1.utils.trace_store import read_episodes
traces = [episode.traces[0] for episode in read_episodes(Path(sys.argv[1]), WireTrace)]
print(json.dumps([
    {"id": one.id, "reward": one.reward, "turns": one.num_turns, "branches": one.num_branches,
     "truncated": one.is_truncated, "roles": [message.role for message in one.branches[-1].messages],
     "logprobs": one.branches[-1].logprobs}
    for one in traces
]))
"""


def run_reader(package: str, script: str, folder: Path) -> Any:
    """What a script of the package says of the files in a folder; skips where there is no such package."""
    variable = f"OVEN_{package.upper()}_PYTHON"
    python = os.environ.get(variable) or (sys.executable if find_spec(package) else None)
    if python is None:
        pytest.skip(f"{package} is not installed, and {variable} names no Python that has it")
    done = subprocess.run([python, "-c", script, str(folder)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def traces() -> list[Trace]:
    """A whole one, one whose context was rewritten, and one without steps."""
    context = (REPAIR.prompt[0], Message(role="user", content="so far: read"))
    first, second, third = REPAIR.steps
    steps = (first, second.model_copy(update={"state": context}), third)
    return [
        REPAIR,
        REPAIR.model_copy(update={"id": "rewritten", "steps": steps, "reward": None, "ended": "truncated"}),
        REPAIR.model_copy(update={"id": "none", "steps": ()}),
    ]


def test_openenv_can_read_our_files(traces: list[Trace], tmp_path: Path) -> None:
    format_named("openenv").write(tmp_path, traces)
    assert run_reader("openenv", OPENENV, tmp_path) == {"ids": ["none", "repair-1", "rewritten"], "same": [True] * 3}


def test_verifiers_can_read_our_files(traces: list[Trace], tmp_path: Path) -> None:
    format_named("verifiers").write(tmp_path, traces)
    whole, rewritten, _ = run_reader("verifiers", VERIFIERS, tmp_path)
    assert (whole["id"], whole["reward"], whole["turns"], whole["branches"]) == ("repair-1", 1.0, 3, 1)
    assert whole["logprobs"] == [-0.1, -1.5, -0.25]
    assert whole["roles"] == ["system", "user", *["assistant", "tool"] * 3]
    assert (rewritten["turns"], rewritten["branches"], rewritten["truncated"]) == (3, 2, True)
