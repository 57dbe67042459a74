"""Helpers for the learner's integration tests: a real server that can be killed and restarted, and its log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tests.support.forked import own_server

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, LogMessage, Message
from oven_core.protocol.names import Subjects
from oven_core.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.link_interface import Link
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

RUN = "r"
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0


async def until(true: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.01)


async def off_loop(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function on another thread, as the training thread does, not on the loop of the test's own bus."""
    return await asyncio.to_thread(call, *args, **kwargs)


def learner_on(link: Link, rate: list[float] | None = None) -> OvenClient:
    """Return a client with one knob."""
    knob = [1.0] if rate is None else rate
    actuators = Actuators()
    actuators.scalar("rate", lambda: knob[0], lambda v: knob.__setitem__(0, v), low=0.1, high=10)
    return OvenClient(link, actuators, max_steps=1000)


def polled(learner: OvenClient) -> bool:
    learner.poll()
    return True


async def keep_observing(learner: OvenClient, first: int, stop: asyncio.Event) -> int:
    """Observe steps like a training loop of 2 ms per step, on another thread."""
    step = first

    def train() -> None:
        nonlocal step
        for _ in range(25):
            learner.observe(step, {"loss": float(step)})
            learner.poll()
            step += 1

    while not stop.is_set():
        await asyncio.to_thread(train)
        await asyncio.sleep(0.05)
    return step - 1


def decision(number: int, value: float = 2.0, apply_at: int = 1) -> Decision:
    return Decision(
        id=f"{number:012d}-00", ballot="b", actuator="rate", verdict="adopted", value=value, reason="", tally=(),
        tick=0, apply_at_tick=apply_at, expires_at_tick=100_000,
    )  # fmt: skip


async def decide(bus: Bus, made: Decision) -> None:
    """Append a decision as a mesh would in a run that has started."""
    on = Subjects(RUN)
    async for _ in bus.read(RUN, subjects=[on.run]):
        break
    await bus.append(on.decision(made.id), made.wire(), once=True)


class Server:
    """The server of run `r`: one port, one store, any number of restarts."""

    def __init__(self, folder: Path, agents: tuple[str, ...] = (), pool: tuple[str, ...] = ()) -> None:
        """Create the server. `pool`: agents that share the key `agents-1`."""
        self.files = ServerFolder(folder / "nats", RUN)
        self.log = folder / "nats-server.log"
        for role in ("admin", "learner", "mesh", "history"):
            self.files.add_user(role, role)
        for agent in agents:
            self.files.add_user("agent", agent)
        if pool:
            self.files.add_user("agent", "agents-1", pool)
        self.port: int | None = None
        self._running: EmbeddedServer | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def creds(self, name: str) -> Path:
        return self.files.creds / f"{name}.nk"

    def env(self, name: str) -> dict[str, str]:
        """Return the environment of a process of the run."""
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        path = os.pathsep.join(str(ROOT / part) for part in ("controller", "agents", "learner", "."))
        return parent_env | {
            "OVEN_URL": self.url, "OVEN_RUN": RUN, "OVEN_CREDS": str(self.creds(name)),
            "OVEN_HISTORY_CREDS": str(self.creds("history")), "PYTHONPATH": path, "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip

    async def start(self) -> None:
        self._running = await EmbeddedServer.start(self.files, self.log, self.port)
        self.port = self._running.port

    async def kill(self) -> None:
        """Kill the server with SIGKILL and wait for its guard."""
        assert self._running is not None
        for process in self._own():
            process.kill()
        await self._running.child.wait()
        self._running.child.close()
        self._running = None

    def freeze(self, frozen: bool) -> None:
        for process in self._own():
            process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    async def stop(self) -> None:
        if self._running is not None:
            self.freeze(False)
            await self._running.stop()
            self._running = None

    def bus(self, name: str = "admin"):  # type: ignore[no-untyped-def]
        return Bus.connect(self.url, Credentials.load(self.creds(name)))

    async def logged(self, wanted: Callable[[Event], object]) -> None:
        """Wait until the log contains a matching event."""
        async with asyncio.timeout(LIMIT_S), self.bus() as bus:
            async for event in bus.read(RUN):
                if wanted(event):
                    return

    async def events(self) -> list[Event]:
        async with self.bus() as bus:
            return [event async for event in bus.read(RUN, until=await bus.head(RUN))]

    async def bodies(self) -> list[LogMessage]:
        """Return the messages in the log. The test fails on an unreadable one."""
        messages: list[LogMessage] = []
        for event in await self.events():
            assert isinstance(event.body, Message), event.body
            messages.append(event.body)
        return messages

    def _own(self) -> list[psutil.Process]:
        assert self._running is not None
        guard = psutil.Process(self._running.child.pid)
        return [child for child in guard.children(recursive=True) if "nats-server" in child.name()]


@asynccontextmanager
async def serving(
    folder: Path,
    agents: tuple[str, ...] = (),
    pool: tuple[str, ...] = (),
    duplicates_s: float = streams.DUPLICATES_S,
) -> AsyncIterator[Server]:
    """Yield a server with the run's two streams."""
    server = Server(folder, agents, pool)
    await server.start()
    try:
        async with server.bus() as bus:
            await streams.create(bus.jetstream, RUN, duplicates_s=duplicates_s)
        yield server
    finally:
        await server.stop()


class Process:
    """A Python process of a test, with its output in a file. It ends with the test. In an xdist worker it is forked and
    `popen` is None."""

    def __init__(self, args: list[str], env: dict[str, str], log: Path, popen: Any = None) -> None:
        self.log = log
        if popen is None:
            server = own_server()
            popen = subprocess.Popen if server is None else server.popen(code=True)
        with log.open("wb") as out:
            self.popen: subprocess.Popen[bytes] = popen(
                [sys.executable, *args], env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    async def ended(self, limit_s: float = LIMIT_S) -> int:
        """Return the exit code. A process that does not end is killed, and the failure shows its output."""
        try:
            await until(lambda: self.popen.poll() is not None, limit_s)
        except TimeoutError:
            self.kill()
            raise AssertionError(f"did not end:\n{self.output()}") from None
        return int(self.popen.returncode)

    def terminate(self) -> None:
        self.popen.terminate()

    def kill(self) -> None:
        if self.popen.poll() is None:
            parent = psutil.Process(self.popen.pid)
            for process in [parent, *parent.children(recursive=True)]:
                process.kill()
            self.popen.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")
