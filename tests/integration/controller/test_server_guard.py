"""The embedded server and the guard: what is started ends with whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.integration.conftest import WAIT_S, family

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, RefusedError
from oven_core.security.credentials import Credentials
from oven_runs.process.child_process import Child
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

PARENT = """
import asyncio, sys
from pathlib import Path
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

async def main():
    folder = ServerFolder(Path(sys.argv[1]) / "nats", "r")
    folder.add_user("admin", "admin")
    await EmbeddedServer.start(folder, Path(sys.argv[1]) / "server.log")
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
# Says that it is there, then ignores being asked to end; its own child does, too.
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("ready", child.pid, flush=True)
child.wait()
"""


def test_kill_minus_nine_of_the_parent_leaves_no_child(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    processes = family(parent.pid)
    assert {p.name() for p in processes} >= {"nats-server"}
    parent.kill()
    parent.wait(WAIT_S)
    parent.stdout.close()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


@pytest.mark.parametrize("name", ["two words", "Öfen", "漢字", "😀", """both " and '"""])
async def test_the_server_starts_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    folder = ServerFolder(tmp_path / name / "nats", "r")
    folder.add_user("admin", "admin")
    server = await EmbeddedServer.start(folder, tmp_path / "server.log")
    async with Bus.connect(server.url, Credentials.load(folder.creds / "admin.nk"), name="admin"):
        server.reload()
    await server.stop()
    assert (tmp_path / name / "nats" / "store").is_dir()


async def test_a_command_that_outlives_its_parent_continues_when_the_pipe_closes(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    script = [sys.executable, "-c", f"print(open({str(go)!r}).read())"]
    child = await Child.start("script", script, tmp_path / "script.log", foreign=True, outlives_parent=True)
    child.close()  # as the end of this process would
    with go.open("w") as out:
        out.write("trained to the end")
    assert await child.wait() == 0 and child.tail() == "trained to the end"


async def test_a_stubborn_command_is_killed_with_its_descendants(tmp_path: Path) -> None:
    log = tmp_path / "stubborn.log"
    os.mkfifo(log)
    # Both ends: opening one of a pipe alone waits for the other.
    with os.fdopen(os.open(log, os.O_RDWR), "rb", buffering=0) as output:
        child = await Child.start("stubborn", [sys.executable, "-c", STUBBORN], log, foreign=True)
        assert output.read(5) == b"ready"
        processes = family(child.pid)
        assert len(processes) == 3
        await child.end(grace_s=0)
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


async def test_a_guard_hears_the_second_of_two_signals_that_come_together(tmp_path: Path) -> None:
    """It is the kill; the system would give it to another thread, if one took signals."""

    async def killed(number: int) -> None:
        log = tmp_path / f"{number}.log"
        os.mkfifo(log)
        with os.fdopen(os.open(log, os.O_RDWR), "rb", buffering=0) as output:
            child = await Child.start("stubborn", [sys.executable, "-c", STUBBORN], log, foreign=True)
            assert await asyncio.to_thread(output.read, 5) == b"ready"
            child.signal(signal.SIGTERM)
            child.kill()
            assert await asyncio.wait_for(child.wait(), WAIT_S) == 128 + signal.SIGKILL
            child.close()

    await asyncio.gather(*map(killed, range(8)))


async def test_the_guard_returns_the_commands_code_and_says_when_there_is_no_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = await Child.start("five", [sys.executable, "-c", "exit(5)"], log, foreign=True)
    assert await child.wait() == 5
    child.close()
    kill_itself = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    child = await Child.start("killed", [sys.executable, "-c", kill_itself], log, foreign=True)
    assert await child.wait() == 128 + signal.SIGKILL
    child.close()
    child = await Child.start("nothere", ["no-such-command"], log, foreign=True)
    assert await child.wait() == 127
    assert child.tail() == "error: cannot run no-such-command: No such file or directory"
    child.close()


async def test_unknown_clients_are_refused_and_a_missing_server_is_a_different_error(server: EmbeddedServer) -> None:
    with pytest.raises(RefusedError, match="refused the credentials of 'stranger'") as refused:
        await Bus.open(server.url, Credentials.new("stranger"))
    assert refused.value.exit_code == 2
    with pytest.raises(RefusedError):
        await Bus.open(server.url)
    with pytest.raises(BusError, match="no NATS server answers") as away:
        await Bus.open("nats://127.0.0.1:1", timeout_s=0.3)
    assert away.value.exit_code == 3


async def test_a_new_user_can_connect_after_a_reload(server: EmbeddedServer) -> None:
    key = Credentials.load(server.folder.add_user("agent", "late"))
    server.reload()
    while True:
        try:
            bus = await Bus.open(server.url, key)
            break
        except RefusedError:
            continue
    await bus.close()


def test_no_secret_is_in_the_configuration_or_in_a_repr(tmp_path: Path) -> None:
    folder = ServerFolder(tmp_path, "r")
    path = folder.add_user("agent", "lr")
    folder.write_conf(1)
    seed = path.read_text().strip()
    for text in (folder.conf.read_text(), (tmp_path / "users.json").read_text(), repr(Credentials.load(path))):
        assert seed not in text
    assert folder.conf.stat().st_mode & 0o777 == 0o600
