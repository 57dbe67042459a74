"""Agents whose code never comes back, starts processes of its own, or hoards: they end all the same, and take nothing
with them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.integration.agents.test_agent_reconnects import COUNTER
from tests.integration.conftest import WAIT_S, Stack, family, wait_for

from oven_runs.process.child_process import Child

HANGS = '''
"""Starts processes, in its group, in a session of their own and as orphans, and never comes back from its vote."""
import subprocess, sys, time
from pathlib import Path

from oven_agents import Agent

SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]
ORPHANS = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=-3, start_new_session=True).pid)"


class Hangs(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        own = [subprocess.Popen(SLEEPS, start_new_session=apart).pid for apart in (False, True)]
        orphan = subprocess.run([sys.executable, "-c", ORPHANS, *SLEEPS], stdout=subprocess.PIPE, text=True)
        partial = Path(__file__).with_suffix(".partial")
        partial.write_text(" ".join(map(str, [*own, int(orphan.stdout)])))
        partial.replace(Path(__file__).with_suffix(".pids"))
        HANG
'''
IN_PYTHON, IN_A_CALL = "while True: pass", "time.sleep(1e6)"
HOARDS = '''
"""Keeps 20 MB more at every window."""
from oven_agents import Agent


class Hoards(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        self.kept = [*getattr(self, "kept", []), *(bytearray(20_000_000) for _ in range(20))]
'''


def hanging(stack: Stack, how: str, name: str = "hangs") -> Path:
    path = stack.folder / f"{name}.py"
    path.write_text(HANGS.replace("HANG", how))
    return path


def started_by(agent: Path) -> list[psutil.Process]:
    """The processes that it started, once it hangs."""
    pids = agent.with_suffix(".pids")
    wait_for(pids.exists, f"{agent.name} votes")
    return [psutil.Process(int(pid)) for pid in pids.read_text().split()]


@pytest.mark.e2e
@pytest.mark.parametrize("how", [pytest.param(IN_PYTHON, marks=pytest.mark.slow), IN_A_CALL])
def test_ctrl_c_ends_an_agent_whose_vote_never_returns(stack: Stack, how: str) -> None:
    up = stack.up("r", "--set", "recipe_options.mode=wait", until="step   12/12")
    path = hanging(stack, how)
    guest = stack.start("agent", "run", path.name)
    processes = [*started_by(path), *family(guest.pid)]
    guest.send_signal(signal.SIGINT)
    code, output = stack.end_of(guest)
    assert code == 0 and "agent-hangs did not end within" in output, output
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert stack.command("down", "r")[0] == 0
    assert stack.end_of(up)[0] == 0


@pytest.mark.slow
@pytest.mark.e2e
def test_an_agent_beside_a_stack_ends_with_it(stack: Stack) -> None:
    up = stack.up("r", "--set", "recipe_options.mode=wait", until="step   12/12")
    path = hanging(stack, IN_PYTHON)
    assert stack.command("agent", "new", "well")[0] == 0
    guests = [stack.start("agent", "run", name) for name in (path.name, "well.py")]
    processes = [*started_by(path), *family(guests[0].pid), *family(guests[1].pid)]
    up.kill()
    for guest, name in zip(guests, ("hangs", "well"), strict=True):
        code, output = stack.end_of(guest)
        assert code == 0 and f"r is down; stopping agent-{name}" in output, output
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


@pytest.mark.e2e
def test_kill_minus_nine_of_agent_run_leaves_nothing(stack: Stack) -> None:
    up = stack.up("r", "--set", "recipe_options.mode=wait", until="step   12/12")
    path = hanging(stack, IN_A_CALL)
    guest = stack.start("agent", "run", path.name)
    processes = [*started_by(path), *family(guest.pid)]
    guest.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    up.send_signal(signal.SIGINT)
    assert stack.end_of(up)[0] == 130


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("pooled", [False, True])
def test_a_stack_ends_though_its_agents_hang(stack: Stack, pooled: bool) -> None:
    agents = [hanging(stack, IN_PYTHON, "one"), hanging(stack, IN_A_CALL, "two")]
    settings = ["--set", "agents=one.py,two.py", "--set", f"agents_per_process={2 if pooled else 1}"]
    up = stack.up("r", *settings, "--set", "recipe_options.mode=wait", until="step   12/12")
    processes = [child for agent in agents[: 1 if pooled else 2] for child in started_by(agent)] + family(up.pid)
    up.send_signal(signal.SIGTERM)
    code, output = stack.end_of(up)
    assert code == 0 and "stopped at step 12" in output, output
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert stack.command("replay", "r")[0] == 0


@pytest.mark.e2e
def test_kill_minus_nine_of_up_leaves_nothing_of_an_agent_that_hangs(stack: Stack) -> None:
    path = hanging(stack, IN_PYTHON)
    up = stack.up("r", "--set", f"agents={path.name}", "--set", "recipe_options.mode=wait", until="step   12/12")
    processes = [*started_by(path), *family(up.pid)]
    up.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="Linux holds a process to it")
def test_an_agent_that_hoards_memory_is_named_and_the_others_continue(stack: Stack) -> None:
    (stack.folder / "hoards.py").write_text(HOARDS)
    (stack.folder / "well.py").write_text(COUNTER.replace("grad.clip", "optimizer.lr_scale"))
    settings = ["agents=hoards.py,well.py", "agents_per_process=2", "agents_memory_mb=256", "recipe_options.mode=wait"]
    up = stack.up("r", *(part for setting in settings for part in ("--set", setting)), until="hoards failed")
    wanted = (
        "agent hoards reached the limit of 256 MB on the memory of an agent process (agents_memory_mb); reduce "
        "the agent's memory, remove it from the run, or raise the limit with --set agents_memory_mb=512"
    )
    status = stack.json("status", "r")
    assert status["agents"]["hoards"]["cannot_fire"] == wanted
    assert (status["agents"]["well"]["live"], status["agents"]["well"]["cannot_fire"]) == (True, "")
    wait_for(lambda: stack.json("status", "r")["agents"]["well"]["proposals"], "the other votes")
    log = (stack.run_folder("r").logs / "agents-1.log").read_text()
    assert wanted in log and "Traceback" not in log
    (stack.folder / "guest.py").write_text(HOARDS)
    guest = stack.start("agent", "run", "guest.py")
    assert "agent guest reached the limit of 256 MB" in stack.read_until(up, "guest failed")
    guest.send_signal(signal.SIGINT)
    code, output = stack.end_of(guest)
    assert code == 0 and "agent guest reached the limit of 256 MB" in output, output
    assert stack.command("down", "r")[0] == 0
    assert stack.end_of(up)[0] == 0


@pytest.mark.e2e
def test_names_that_are_taken_get_no_key(stack: Stack) -> None:
    assert stack.command("agent", "new", "scout")[0] == 0
    settings = ["agents=learning_rate,scout.py", "agents_per_process=2", "recipe_options.mode=wait"]
    up = stack.up("r", *(part for setting in settings for part in ("--set", setting)), until="starting the learner")
    before = stack.json("creds", "list")
    for name, whose in (
        ("learning_rate", "an agent of this run, which uses the key 'agents-1'"),
        ("agents-1", "a process with several agents, or a mesh replica"),
        ("agents-7", "a process with several agents, or a mesh replica"),
        ("mesh-2", "a process with several agents, or a mesh replica"),
        ("mesh", "a part of the stack"),
        ("nats-server", "a part of the stack"),
    ):
        code, output = stack.command("creds", "add", name)
        assert code == 2, output
        assert output == f"error: {name!r} is the name of {whose}; choose another name for your own agent\n"
    assert stack.json("creds", "list") == before
    code, output = stack.command("agent", "run", "scout.py", "--name", "curriculum")
    assert code == 2 and "run it with `oven-controller agent run curriculum`" in output, output
    shipped = stack.start("agent", "run", "curriculum")
    assert "curriculum joined" in stack.read_until(up, "curriculum joined")
    shipped.send_signal(signal.SIGINT)
    assert stack.end_of(shipped)[0] == 0
    assert stack.command("down", "r")[0] == 0
    assert stack.end_of(up)[0] == 0


async def test_a_crash_at_the_limit_says_that_it_may_be_the_limits(tmp_path: Path) -> None:
    """Compiled code that gets no memory can end a process without a word."""
    crash = "import os; kept = bytearray(100_000_000); kept[::4096] = b'x' * len(kept[::4096]); os.abort()"
    for megabytes, expected in (("128", True), ("1000", False)):
        env = {"OVEN_AGENTS_MEMORY_MB": megabytes}
        log = tmp_path / f"{megabytes}.log"
        child = await Child.start(
            "crashes", [sys.executable, "-c", crash], log, env=env, foreign=True, kill_descendants=True
        )
        assert await child.wait() == 128 + signal.SIGABRT
        child.close()
        assert ("an agent process may use at most 128 MB (agents_memory_mb)" in child.tail()) == expected
