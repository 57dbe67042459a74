"""Who is plugged into a run is started with a key, watched, and counted when the run is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.integration.conftest import Stack, wait_for

from oven_bench.hostile.attacks import ATTACKS
from oven_bench.hostile.plugged_agents import Company
from oven_core.errors import ProcessError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus
from oven_runs.home.run_folder import RunFolder

pytestmark = pytest.mark.e2e


def test_what_outlives_a_run_is_counted_and_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    env = {**os.environ, "OVEN_RUN_DIR": str(tmp_path), "OVEN_CREDS": str(tmp_path / "evil.nk")}
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"], env=env
    )
    parent.wait(60)
    company = Company(folder, {}, {"evil"})
    company.look()
    assert company.memory_mb > 0
    stranger = subprocess.Popen(["sleep", "600"], env={**env, "OVEN_RUN_DIR": "elsewhere"})
    assert company.end() == 1
    assert Company(folder, {}, {"evil"}).end() == 0, "it is gone"
    assert stranger.poll() is None, "another run's process is none of its business"
    stranger.kill()
    stranger.wait()


def test_guests_join_a_running_stack_and_leave_with_it(stack: Stack) -> None:
    up = stack.up("held", "--set", "recipe_options.mode=wait", "--steps", "3", until="step    3")
    company = Company(stack.run_folder("held"), stack.env, {"silencer", "pair-1"})
    for attack in ("silencer", "pair"):
        company.plug_in(ATTACKS[attack].guests[0])
    for name in ("silencer", "pair-1"):
        log = stack.run_folder("held").logs / f"agent-{name}.log"
        wait_for(log.exists, f"{name} is started")
    output = stack.read_until(up, "pair-1 joined")
    assert "pair-1 joined" in output
    keys = stack.json("creds", "list", "--run", "held")
    assert {key["name"]: key["role"] for key in keys}.items() >= {"silencer": "agent", "pair-1": "agent"}.items()
    up.send_signal(signal.SIGTERM)
    stack.end_of(up)
    assert company.end() == 0, "told to end, they do"
    assert not [p for p in psutil.process_iter(["cmdline"]) if "held" in str(p.info["cmdline"])]
    events = [Event.from_line(line) for line in stack.run_folder("held").export.read_text().splitlines()]
    states = [e.body.state for e in events if isinstance(e.body, AgentStatus) and e.author == "pair-1"]
    assert states[0] == "joined"


def test_a_command_that_fails_is_told_with_what_it_said(stack: Stack) -> None:
    company = Company(stack.run_folder("none"), stack.env, set())
    with pytest.raises(
        ProcessError, match=r"`oven-controller creds add x --run none` ended with code 2: error: no run"
    ):
        company.command("creds", "add", "x", "--run", "none")
