"""`bench pairs` at sizes that take seconds: both arms really run, and its object has the figures of the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted

pytestmark = pytest.mark.e2e


def test_both_arms_run_and_the_swarm_is_offered_the_teachers(oven: Oven, tmp_path: Path) -> None:
    command = ["bench", "pairs", "--quick", "--seeds", "2", "--first-seed", "101", "--steps", "6"]
    command += ["--jobs", "1"]  # one process for what runs without a stack: torch is imported once
    code, said = oven(*command, "--json", "--home", str(tmp_path))
    assert code == 0, said
    found = json.loads(said.splitlines()[-1])
    assert set(found) == {
        "start", "seeds", "mean_swarm", "mean_alone", "difference", "difference_low", "difference_high",
        "decisions_per_run", "verdict",
    }  # fmt: skip
    assert found["seeds"] == 2 and 0 < found["mean_alone"] <= 1
    assert found["difference_low"] <= found["difference"] <= found["difference_high"]
    for folder in (tmp_path / "runs").iterdir():
        events = [Event.from_line(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        run = next(event.body for event in events if isinstance(event.body, RunStarted))
        offered = {spec.name: (spec.choices, spec.value) for spec in run.actuators}
        assert offered["teacher.active"] == (("small", "strong"), "small") and offered["grpo.beta"][1] == 1.0
        assert not any(b"weak-teacher" in event.data or "drill" in event.subject for event in events)
