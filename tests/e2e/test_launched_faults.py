"""Faults and restarts of trainings under torchrun, sharded by FSDP2 on CPU, inside a real stack."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven
from tests.support.forked import COLD
from tests.support.launched_training import SAVE_STEPS, SLEEPS
from tests.support.learner_side import until

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_runs.log.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 240
SCRIPT = ("-m", "tests.support.launched_training")
STEPS = 12
AGENTS = ("--set", "agents=[learning_rate, divergence]", "--set", "kg=false")
END_LIMIT_S = 30
"""Seconds after the death of a rank within which the launcher must report it and end."""


def command(run: str, count: int, *options: str, resume: bool = False) -> list[str]:
    """Return the command line of a run with this many ranks."""
    local = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    launcher = [
        "env",
        f"{COLD}=1",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(count),
        *local,
    ]
    return ["run", "--run", run, *(["--resume"] if resume else AGENTS), "--", *launcher, *options]


def start(oven: Oven, args: list[str]) -> tuple[subprocess.Popen[str], asyncio.Task[tuple[str, str]]]:
    """Start a command. Return its process, and a task that reads its output up to its end."""
    env = {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    # Without this, ranks that torchrun restarts find the addresses of the dead ones (pytorch issue 135712).
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    process = oven.start(*args, env=env)
    return process, asyncio.create_task(asyncio.to_thread(process.communicate, timeout=LIMIT_S))


async def kill_asleep(folder: Path, process: subprocess.Popen[str]) -> None:
    """Kill rank 1 when it sleeps."""
    await until(lambda: (folder / "asleep").exists() or process.poll() is not None, LIMIT_S)
    if process.poll() is None:
        os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)


def starts_and_end(events: list[Event]) -> tuple[list[RunStarted], RunEnded]:
    starts = [event.body for event in events if isinstance(event.body, RunStarted)]
    end = [event.body for event in events if isinstance(event.body, RunEnded)][-1]
    return starts, end


@pytest.mark.parametrize("sleep_in", SLEEPS)
async def test_a_killed_rank_ends_the_run_with_the_launchers_error_and_a_whole_log(
    oven: Oven, tmp_path: Path, sleep_in: str
) -> None:
    run = f"killed-in-{sleep_in}"
    script = (*SCRIPT, "trainer", str(tmp_path), "--steps", "100000", "--sleep-in", sleep_in)
    process, output = start(oven, command(run, 2, *script))
    if sleep_in == "restore":
        await until(lambda: (tmp_path / "steps-1.jsonl").exists() or process.poll() is not None, LIMIT_S)
        oven.start("set", "run.rollback", "1", "--run", run)  # the learner never answers
    await kill_asleep(tmp_path, process)
    killed_at = time.monotonic()
    text, _ = await output
    seconds = time.monotonic() - killed_at
    assert process.returncode != 0 and "exitcode  : -9" in text, text
    assert seconds < END_LIMIT_S, f"{seconds} s: {text}"
    events = oven.events(run)
    _, end = starts_and_end(events)
    assert end.reason == "failed", end
    assert replay(events, run).same, "byte for byte"


async def test_torchrun_restarts_the_ranks_as_the_next_incarnation(oven: Oven, tmp_path: Path) -> None:
    options = ("--max-restarts", "1", *SCRIPT, "trainer", str(tmp_path), "--steps", str(STEPS))
    process, output = start(oven, command("restarted", 2, *options, "--sleep-in", "all-reduce"))
    await kill_asleep(tmp_path, process)
    text, _ = await output
    assert process.returncode == 0, text
    events = oven.events("restarted")
    starts, end = starts_and_end(events)
    assert [start.step for start in starts] == [0, SAVE_STEPS] and [start.incarnation for start in starts] == [1, 2]
    assert (end.reason, end.step) == ("completed", STEPS)
    assert replay(events, "restarted").same, "byte for byte"


async def test_a_run_continues_with_more_ranks(oven: Oven, tmp_path: Path) -> None:
    script = (*SCRIPT, "trainer", str(tmp_path), "--steps")
    process, output = start(oven, command("grown", 2, *script, "100000"))
    await until(lambda: (tmp_path / "steps-1.jsonl").exists() or process.poll() is not None, LIMIT_S)
    code, reply = await asyncio.to_thread(oven, "stop", "grown")
    text, _ = await output
    assert (code, process.returncode) == (0, 0), reply + text
    _, end = starts_and_end(oven.events("grown"))
    process, output = start(oven, command("grown", 4, *script, str(end.step + STEPS), resume=True))
    text, _ = await output
    assert process.returncode == 0, text
    events = oven.events("grown")
    starts, last_end = starts_and_end(events)
    assert [start.step for start in starts] == [0, end.step] and [start.incarnation for start in starts] == [1, 2]
    assert (last_end.reason, last_end.step) == ("completed", end.step + STEPS)
    seen = [event.body.step for event in events if isinstance(event.body, Observation)]
    assert seen == list(range(1, last_end.step + 1))
    assert replay(events, "grown").same, "byte for byte"
