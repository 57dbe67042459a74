"""`bake`: one call from a model to a steered run, in a stack of its own that ends with the script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import Decision, Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.home.run_folder import Home
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def script(oven: Oven, name: str = "text_model.py", **env: str) -> subprocess.Popen[str]:
    parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
    process: subprocess.Popen[str] = oven.popen(
        [sys.executable, str(EXAMPLES / name)],
        env=parent_env | {"OVEN_HOME": str(oven.home), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return process


def test_a_baked_model_continues_training_after_its_stack_is_killed(oven: Oven) -> None:
    process = script(oven, STEPS="400")
    before = oven.until(process, "registered while training")
    run = Home(oven.home).find(None, running=True)
    assert f"run {run.run}: teacher small → big at step" in before
    psutil.Process(run.info().pid).send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and "'train_runtime'" in output, output
    oven("replay", run.run)  # brings home what the server's store has
    events = oven.events(run.run)
    bodies = [event.body for event in events]
    started = next(body for body in bodies if isinstance(body, RunStarted))
    assert (started.recipe, started.horizon.max_steps, started.rules.autonomy) == ("bake", 400, "auto")
    command = next(body for body in bodies if isinstance(body, OperatorCommand))
    decision = next(body for body in bodies if isinstance(body, Decision) and body.command == command.id)
    receipt = next(body for body in bodies if isinstance(body, Receipt) and body.decision_id == decision.id)
    assert (receipt.status, receipt.before, receipt.after) == ("applied", "small", "big")
    announced = next(body for body in bodies if isinstance(body, ActuatorAnnounced))
    assert announced.actuator.choices == ("small", "big", "late"), "registering is no decision"
    assert replay(events, run.run).same


@pytest.mark.slow
def test_a_model_of_motion_is_baked(oven: Oven) -> None:
    process = script(oven, "motion_model.py", STEPS="120", WARM_STEPS="40")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    run = output.partition("run ")[2].partition(":")[0]
    assert f"run {run}: teacher small → strong at step" in output and "completed at step 120" in output
    assert "registered while training: strong → wide at step" in output
    events = oven.events(run)
    announced = [event.body.actuator for event in events if isinstance(event.body, ActuatorAnnounced)]
    assert [(spec.name, spec.choices, spec.value) for spec in announced] == [
        ("teacher.active", ("small", "strong", "wide"), "strong")
    ], "registering is no decision"
    assert replay(events, run).same


@pytest.mark.slow
def test_a_run_with_a_late_teacher_is_killed_and_resumed_on_three_meshes(oven: Oven) -> None:
    command = [sys.executable, "-m", "tests.support.baked", "late"]
    parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
    env = parent_env | {"OVEN_HOME": str(oven.home), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    options: dict[str, Any] = {"env": env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = oven.popen(command, **options, cwd=ROOT)
    oven.until(process, "late from step")
    oven.until(process, "saved a checkpoint")
    run = Home(oven.home).find("late")
    stack = psutil.Process(run.info().pid)
    family = [stack, *stack.children(recursive=True)]
    process.kill()
    process.communicate(timeout=60)
    gone, survivors = psutil.wait_procs(family, timeout=60)
    assert not survivors and len(gone) == len(family) and not run.is_locked(), (
        "nothing is left of a script that was killed"
    )
    assert replay(oven.events("late"), "late").same
    output, _ = oven.popen([*command, "resume"], **options, cwd=ROOT).communicate(timeout=200)
    assert "late at the end" in output and "completed at step 200" in output, output
    events = oven.events("late")
    bodies = [event.body for event in events]
    first, again = [body for body in bodies if isinstance(body, RunStarted)]
    assert again.step > 0 and again.incarnation == first.incarnation + 1
    announced = {spec.name: spec for spec in again.actuators}["teacher.active"]
    assert (announced.value, announced.choices) == ("late", ("first", "late"))
    report = replay(events, "late")
    assert report.same and report.decisions
