"""A cluster of three real servers on loopback, whose nodes can be killed, frozen, and cut off from the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from nats.errors import Error as NatsError
from tests.support.learner_side import ROOT, RUN

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, NameInUseError
from oven_core.protocol.names import log_stream
from oven_core.security.credentials import Credentials
from oven_runs.process.child_process import Child
from oven_runs.server.cluster import Node, write_confs
from oven_runs.server.embedded_server import ServerFolder, find_binary, free_port

NODES = (1, 2, 3)


class Wire:
    """A connection to an address that can be cut: nothing passes then, and neither end is notified."""

    def __init__(self) -> None:
        self.port = 0
        self._whole = asyncio.Event()
        self._whole.set()
        self._to = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, to: int) -> None:
        self._to = to
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self, cut: bool) -> None:
        (self._whole.clear if cut else self._whole.set)()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                there_reader, there = await asyncio.open_connection("127.0.0.1", self._to)
            except OSError:
                writer.transport.abort()
                return
            pumps = [asyncio.create_task(self._pump(*way)) for way in ((reader, there), (there_reader, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                for end in (writer, there):
                    end.transport.abort()
                self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()


class Cluster:
    def __init__(self, folder: Path, agents: tuple[str, ...]) -> None:
        self.files = ServerFolder(folder / "nats", RUN)
        self._log = folder
        for role in ("admin", "learner", "mesh", "history"):
            self.files.add_user(role, role)
        for agent in agents:
            self.files.add_user("agent", agent)
        self.ports = {node: free_port() for node in NODES}
        self._route_ports = {node: free_port() for node in NODES}
        self.routes = {(a, b): Wire() for a in NODES for b in NODES if a != b}
        self.clients = {node: Wire() for node in NODES}
        self._children: dict[int, Child] = {}

    async def start(self) -> None:
        for (_, to), wire in self.routes.items():
            await wire.open(self._route_ports[to])
        for node, wire in self.clients.items():
            await wire.open(self.ports[node])
        self.files.write_conf(self.ports[1])
        nodes = []
        for node in NODES:
            ways = tuple(f"127.0.0.1:{self.routes[node, peer].port}" for peer in NODES if peer != node)
            nodes.append(Node("127.0.0.1", self.ports[node], self._route_ports[node], ways))
        self._confs = dict(zip(NODES, write_confs(self.files, nodes), strict=True))
        # Peers and clients go through the wires only: clients hear of no other server, and peers, which tell each other
        # where the third is, say an address at which nobody listens.
        nowhere = '"cluster": {"no_advertise": true, "advertise": "127.0.0.1:1",'
        for conf in self._confs.values():
            conf.write_text(conf.read_text().replace('"cluster": {', nowhere))
        for node in NODES:
            await self.start_node(node)
        tried = False
        async with asyncio.timeout(60), self.bus() as bus:
            while True:
                try:
                    await streams.create(bus.jetstream, RUN, 3)
                    return
                except (BusError, NatsError):  # no leader yet
                    tried = True
                    await asyncio.sleep(0.1)
                except NameInUseError:  # what was given up before was done after all
                    assert tried
                    return

    async def start_node(self, node: int) -> None:
        command = [find_binary(), "-c", str(self._confs[node])]
        self._children[node] = await Child.start(f"node-{node}", command, self._log / f"node-{node}.log", foreign=True)

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{wire.port}" for wire in self.clients.values())

    def creds(self, name: str) -> Path:
        return self.files.creds / f"{name}.nk"

    def env(self, name: str) -> dict[str, str]:
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        path = os.pathsep.join(str(ROOT / part) for part in ("controller", "agents", "learner", "."))
        return parent_env | {
            "OVEN_URL": self.url, "OVEN_RUN": RUN, "OVEN_CREDS": str(self.creds(name)),
            "OVEN_HISTORY_CREDS": str(self.creds("history")), "PYTHONPATH": path, "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def bus(self, name: str = "admin"):  # type: ignore[no-untyped-def]
        return Bus.connect(self.url, Credentials.load(self.creds(name)), timeout_s=60)

    async def leader(self, bus: Bus) -> int:
        """Return the node that leads the log's stream, once there is one."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(NatsError):
                    info = await bus.jetstream.stream_info(log_stream(RUN))
                    if info.cluster and info.cluster.leader:
                        return int(info.cluster.leader.rsplit("-", 1)[1])
                await asyncio.sleep(0.05)

    async def kill(self, node: int) -> None:
        for process in self._own(node):
            process.kill()
        await self._children[node].wait()
        self._children[node].close()

    def freeze(self, node: int, frozen: bool) -> None:
        for process in self._own(node):
            process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def cut_off(self, node: int, cut: bool, clients: bool = True) -> None:
        """Cut a node off from its peers and, with `clients`, from all clients."""
        for pair, wire in self.routes.items():
            if node in pair:
                wire.cut(cut)
        if clients:
            self.clients[node].cut(cut)

    async def stop(self) -> None:
        for node, child in self._children.items():
            if child.returncode is None:
                self.freeze(node, False)
                await self.kill(node)
        for wire in (*self.routes.values(), *self.clients.values()):
            await wire.close()

    def _own(self, node: int) -> list[psutil.Process]:
        guard = psutil.Process(self._children[node].pid)
        return [child for child in guard.children(recursive=True) if "nats-server" in child.name()]


@asynccontextmanager
async def clustered(folder: Path, agents: tuple[str, ...] = ()) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, agents)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
