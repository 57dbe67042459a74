"""The link's worker process: what happens when it is killed, frozen, or left behind, and what it keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.support.learner_side import RUN, Server, decide, decision, learner_on, off_loop, polled, serving, until

from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.protocol.messages import LearnerMessage, Observation, Receipt, RunEnded
from oven_core.security.credentials import Credentials
from oven_learner.link import process_link
from oven_learner.link.process_link import ProcessLink
from oven_runs.home.learner_spool import NAME, append_missing, read_spool
from oven_runs.server.embedded_server import free_port

LEFT_BEHIND = """
import os, signal, sys
from pathlib import Path
from oven_core.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.link.process_link import ProcessLink
from oven_learner.client.oven_client import OvenClient

link = ProcessLink(sys.argv[1], "r", Credentials.load(Path(sys.argv[2])))
client = OvenClient(link, Actuators())
client.start()
for step in range(1, 6):
    client.observe(step, {"loss": 1.0})
def spin(wait):
    while wait():
        pass

spin(lambda: link._unsent or link._new_messages)
print(link.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


class Training:
    """A client whose knob can be turned, on a link of its own."""

    def __init__(self, server: Server, folder: Path | None = None) -> None:
        self.rate = [1.0]
        self.link = ProcessLink(server.url, RUN, Credentials.load(server.creds("learner")), folder=folder)
        self.client = learner_on(self.link, self.rate)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.client.observe(self.client.tick + 1, {"loss": 1.0})
            self.client.poll()

    def turned(self, value: float) -> bool:
        return polled(self.client) and self.rate[0] == value

    def signal(self, number: signal.Signals) -> None:
        assert self.link.pid is not None
        os.kill(self.link.pid, number)


async def learner_messages(server: Server) -> list[LearnerMessage]:
    return [body for body in await server.bodies() if isinstance(body, LearnerMessage)]


async def test_messages_arrive_once_in_order_and_decisions_are_applied(nats: Server) -> None:
    run = Training(nats)
    await off_loop(run.client.start)
    run.steps(100)
    run.client.observe(101, {"loss": np.float32(0.5), "accuracy": np.float64(0.25)})  # type: ignore[dict-item]
    run.client.observe(102, {"grad_norm": float("nan")})
    async with nats.bus("mesh") as mesh:
        await decide(mesh, decision(3, value=3.0))
    await until(lambda: run.turned(3.0))
    assert await off_loop(run.client.close, "completed")
    messages = await learner_messages(nats)
    assert [message.n for message in messages] == list(range(1, 106))
    observed = [message for message in messages if isinstance(message, Observation)]
    assert observed[-2].metrics == {"loss": 0.5, "accuracy": 0.25}
    assert observed[-1].metrics["grad_norm"] != observed[-1].metrics["grad_norm"]
    assert [(r.status, r.after) for r in messages if isinstance(r, Receipt)] == [("applied", 3.0)]
    assert not psutil.pid_exists(run.link.pid or 0)


async def test_a_killed_process_loses_only_observations(
    nats: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_link, "RESTART_PAUSE_S", 0.01)
    run = Training(nats)
    await off_loop(run.client.start)
    async with nats.bus("mesh") as mesh:
        for life in (1, 2, 3):
            run.steps(50)
            await decide(mesh, decision(10 * life, value=1.0 + life))
            await until(lambda life=life: run.turned(1.0 + life))  # type: ignore[misc]
            nats.freeze(True)  # so that what is said now is under way when it dies
            run.steps(20)
            before = run.link.pid
            run.signal(signal.SIGKILL)
            await until(lambda before=before: run.link.pid != before)  # type: ignore[misc]
            nats.freeze(False)
            await decide(mesh, decision(10 * life + 5, value=5.0 + life))
            await until(lambda life=life: run.turned(5.0 + life))  # type: ignore[misc]
    assert await off_loop(run.client.close, "completed", timeout_s=60)
    messages = await learner_messages(nats)
    numbers = [message.n for message in messages]
    assert numbers == sorted(set(numbers)), "in order, and nothing twice"
    assert sum(isinstance(message, Receipt) for message in messages) == 6
    end = messages[-1]
    assert isinstance(end, RunEnded) and end.n == run.client.position()["n"]
    lost = run.client.tick - sum(isinstance(message, Observation) for message in messages)
    assert run.link.dropped_count == end.dropped_observations == lost
    assert "training continues" in caplog.text


@pytest.mark.slow
async def test_a_process_killed_during_an_outage_is_replaced_afterwards(
    nats: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_link, "RESTART_PAUSE_S", 0.01)
    run = Training(nats)
    await off_loop(run.client.start)
    run.steps(5)
    await until(lambda: not run.link.unsent)
    await nats.kill()
    run.signal(signal.SIGKILL)
    await until(lambda: "no NATS server answers" in caplog.text)
    run.steps(5)
    await nats.start()
    async with nats.bus("mesh") as mesh:
        await decide(mesh, decision(1, value=3.0))
    await until(lambda: run.turned(3.0))
    assert await off_loop(run.client.close, "completed", timeout_s=60)
    assert [message.n for message in await learner_messages(nats)] == list(range(1, 14))
    assert run.link.dropped_count == 0


async def test_a_frozen_process_blocks_nothing_and_the_oldest_observations_are_dropped(
    nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_link, "MAX_WAITING_BYTES", 100_000)
    run = Training(nats)
    await off_loop(run.client.start)
    run.steps(10)
    run.signal(signal.SIGSTOP)
    run.steps(20_000)
    await until(lambda: run.link.dropped_count > 1_000)
    run.signal(signal.SIGCONT)
    assert await off_loop(run.client.close, "completed", timeout_s=60)
    messages = await learner_messages(nats)
    end = messages[-1]
    assert isinstance(end, RunEnded) and 1_000 < end.dropped_observations < 20_000
    assert len(messages) == 20_012 - end.dropped_observations
    numbers = [message.n for message in messages]
    assert numbers == sorted(set(numbers)) and numbers[-2] == 20_011, "the newest are there"


async def test_closing_does_not_wait_for_a_frozen_process(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "SPOOL_TIMEOUT_S", 0.2)
    run = Training(nats)
    await off_loop(run.client.start)
    run.signal(signal.SIGSTOP)
    run.steps(10)
    assert not await off_loop(run.client.close, "completed", timeout_s=0.2)
    assert not psutil.pid_exists(run.link.pid or 0)


async def test_the_last_messages_of_a_killed_learner_are_delivered(nats: Server, tmp_path: Path) -> None:
    (tmp_path / "content.py").write_text(LEFT_BEHIND)
    args = [sys.executable, str(tmp_path / "content.py"), nats.url, str(nats.creds("learner"))]
    done = await off_loop(
        subprocess.run, args, env=nats.env("learner"), stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    await until(lambda: not psutil.pid_exists(int(done.stdout)))
    assert [message.n for message in await learner_messages(nats)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("last", ["", "; link._closing.set(); spin(lambda: not link._sent_close)"])
async def test_an_orphaned_process_without_a_server_ends(nats: Server, tmp_path: Path, last: str) -> None:
    """Whether the learner was just closing it or not."""
    (tmp_path / "content.py").write_text(LEFT_BEHIND.replace("print(", f"input(){last}; print("))
    args = [sys.executable, str(tmp_path / "content.py"), nats.url, str(nats.creds("learner"))]
    content = subprocess.Popen(args, env=nats.env("learner"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    await nats.logged(lambda event: isinstance(event.body, Observation))
    await nats.kill()
    output, _ = await off_loop(content.communicate, "\n", 60)
    await until(lambda: not psutil.pid_exists(int(output)))


async def test_too_large_a_message_is_omitted_and_logged(nats: Server, caplog: pytest.LogCaptureFixture) -> None:
    run = Training(nats)
    await off_loop(run.client.start)
    run.client.observe(1, {f"metric/{n}": 1 / 3 for n in range(20_000)})
    run.steps(2)
    assert await off_loop(run.client.close, "completed")
    assert [message.n for message in await learner_messages(nats)] == [1, 3, 4, 5]
    assert "cannot build a message, so it is omitted" in caplog.text


async def test_errors_at_start_are_raised_by_open(nats: Server, tmp_path: Path) -> None:
    nobody = ProcessLink(f"nats://127.0.0.1:{free_port()}", RUN, None)
    with pytest.raises(BusError, match="no NATS server answers"):
        await off_loop(nobody.open)
    stranger = Credentials.new("learner")
    with pytest.raises(RefusedError, match="refused the credentials of 'learner'"):
        await off_loop(ProcessLink(nats.url, RUN, stranger).open)
    missing = ProcessLink(nats.url, "other", Credentials.load(nats.creds("admin")))
    with pytest.raises(BusError, match="'other' cannot be read"):
        await off_loop(missing.open)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / RUN).mkdir()
    return tmp_path / RUN


async def test_spooled_messages_are_sent_first_by_the_next_learner(
    nats: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Training(nats, folder)
    await off_loop(run.client.start)
    run.steps(20)
    await until(lambda: not run.link.unsent)
    await nats.kill()
    run.steps(30)
    assert not await off_loop(run.client.close, "completed", timeout_s=0.2)
    assert "31 messages were not sent; 31 of them are stored in" in caplog.text
    content = read_spool(folder, RUN)
    assert (len(content.messages), content.observation_count, content.lost) == (31, 30, 0)
    with pytest.raises(BusError):
        await off_loop(Training(nats, folder).client.start)
    assert read_spool(folder, RUN) == content, "a learner that finds no server leaves it as it was"
    await nats.start()
    again = Training(nats, folder)
    past = await off_loop(again.client.start)
    assert (past.incarnation, past.tick) == (1, 50)
    again.steps(5)
    assert await off_loop(again.client.close, "completed")
    assert not (folder / NAME).exists()
    numbers = [(message.incarnation, message.n) for message in await learner_messages(nats)]
    assert numbers == [(1, n) for n in range(1, 53)] + [(2, n) for n in range(1, 8)]


async def test_spooled_messages_that_are_in_the_log_are_not_sent_again(nats: Server, folder: Path) -> None:
    """The log took it and could not say so any more; and it was appended once before, by one who was killed then."""
    run = Training(nats, folder)
    await off_loop(run.client.start)
    run.steps(10)
    await until(lambda: not run.link.unsent)
    await nats.kill()
    run.steps(10)
    assert not await off_loop(run.client.close, "completed", timeout_s=0.2)
    content = read_spool(folder, RUN)
    await nats.start()
    async with nats.bus() as bus:
        assert await append_missing(bus, RUN, content.messages[:4]) == 4
        assert await append_missing(bus, RUN, content.messages) == 7
        assert await append_missing(bus, RUN, content.messages) == 0
    assert [message.n for message in await learner_messages(nats)] == list(range(1, 23))


@pytest.mark.slow
async def test_if_the_process_is_killed_in_an_outage_the_learner_writes_the_spool(
    nats: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Training(nats, folder)
    await off_loop(run.client.start)
    run.steps(10)
    await until(lambda: not run.link.unsent)
    await nats.kill()
    run.signal(signal.SIGKILL)
    await until(lambda: "no NATS server answers" in caplog.text)
    run.steps(10)
    assert not await off_loop(run.client.close, "completed", timeout_s=0.2)
    content = read_spool(folder, RUN)
    assert content.run_end is not None and content.observation_count == 10
    await nats.start()
    async with nats.bus() as bus:
        await append_missing(bus, RUN, content.messages)
    assert [message.n for message in await learner_messages(nats)] == list(range(1, 23))


SAYS_MORE = """input()
for step in range(6, 11):
    client.observe(step, {"loss": 1.0})
spin(lambda: link._unsent or link._new_messages)
print("""


async def test_the_messages_of_a_learner_killed_in_an_outage_are_spooled(nats: Server, folder: Path) -> None:
    """By its link's process, which outlives it."""
    text = LEFT_BEHIND.replace("print(", SAYS_MORE).replace(
        "(sys.argv[2])))", "(sys.argv[2])), folder=Path(sys.argv[3]))"
    )
    (folder.parent / "content.py").write_text(text)
    args = [sys.executable, str(folder.parent / "content.py"), nats.url, str(nats.creds("learner")), str(folder)]
    env = nats.env("learner")
    content = subprocess.Popen(args, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    await nats.logged(lambda event: isinstance(event.body, Observation) and event.body.tick == 5)
    assert (folder / NAME).exists() and read_spool(folder, RUN).is_empty, "it is held while the learner lives"
    await nats.kill()
    output, _ = await off_loop(content.communicate, "\n", 60)
    assert content.returncode == -signal.SIGKILL
    await until(lambda: not psutil.pid_exists(int(output)))
    spool = read_spool(folder, RUN)
    assert [message.message_id.split("-")[1] for message in spool.messages] == ["7", "8", "9", "10", "11"]
    assert spool.run_end is None and not spool.lost and not spool.has_unknown_loss


async def test_a_spool_of_another_run_is_refused_at_the_start(nats: Server, folder: Path) -> None:
    head = b'{"spool": 1, "run": "q", "messages": 0, "lost": 0}\n'
    (folder / NAME).write_bytes(head)
    with pytest.raises(ConfigError, match="contains messages of run 'q', but this is run 'r': move it to"):
        await off_loop(Training(nats, folder).client.start)
    assert (folder / NAME).read_bytes() == head
