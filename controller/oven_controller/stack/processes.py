"""Start a run's processes one after another, each when the previous one is ready, and shut them down cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from oven_controller.notify import cursor
from oven_controller.stack.plan import Plan, Pool, Service
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, ConfigError, OvenError, ProcessError
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import GraphInfoRequest
from oven_core.protocol.history_requests import HistoryRequest
from oven_core.protocol.judge_spec import member_of
from oven_core.protocol.messages import Receipt
from oven_core.protocol.names import NAME, Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.access.log_watch import LogWatch
from oven_runs.process.child import WRONG_SETTING, Child, describe_exit, short_path
from oven_runs.process.supervisor import Restartable, SupervisedProcess
from oven_runs.server.embedded import EmbeddedServer


class Members:
    """Starts and ends committee members in response to log events, one change at a time."""

    def __init__(self, processes: Processes, tell: Callable[[str], None]) -> None:
        """`tell` prints a line."""
        self._processes, self._tell = processes, tell
        self._change = asyncio.Lock()
        self._adding: dict[str, str] = {}  # command → member
        self._removing: dict[str, str] = {}
        self._changing: set[asyncio.Task[None]] = set()

    def hear(self, event: Event) -> None:
        """React to a verified event. A member's process starts when an operator adds it, with its key and settings
        ready. It ends if the learner refuses it, or after the learner has removed it, when it has no open request."""
        match event.body:
            case OperatorCommand(action="add") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._adding[command.id] = member
                self._later(self._start(member), f"add {member}")
            case OperatorCommand(action="remove") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._removing[command.id] = member
            case Receipt() as receipt if receipt.command in self._adding:
                member = self._adding.pop(receipt.command)
                if receipt.status != "applied":
                    self._later(self._end(member), f"refuse {member}")
            case Receipt() as receipt if receipt.command in self._removing:
                member = self._removing.pop(receipt.command)
                if receipt.status == "applied":
                    self._later(self._end(member), f"remove {member}")
            case _:
                pass

    async def close(self) -> None:
        """Cancel the changes in progress."""
        await end(*self._changing)

    def _later(self, change: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(change, name=name)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _start(self, member: str) -> None:
        async with self._change:
            if self._processes.has_member(member):
                return
            try:
                await self._processes.start_members([member])
            except Stopped:
                pass
            except OvenError as error:
                self._tell(f"member {member} does not come: {error}")

    async def _end(self, member: str) -> None:
        async with self._change:
            await self._processes.end_member(member)
            self._tell(f"member {member} has left")


READY_S = 60.0
"""Timeout for a process to become ready. Importing an SDK for the first time takes 20 s on a busy machine."""
KG_READY_S = 20.0
LEARNER_GRACE_S = 20.0
GRACE_S = 5.0
POLL_S = 0.05


class Stopped(Exception):
    """Raised when the user stops the stack during its start."""


class Processes:
    """The processes of a run. The run ends with the learner. Every other process is restarted if it dies."""

    def __init__(
        self,
        plan: Plan,
        bus: Bus,
        watch: LogWatch,
        stop: asyncio.Event,
        tell: Callable[[str], None],
        note: Callable[[str, int], None],
    ) -> None:
        """`stop` ends the stack. `tell` prints a line. `note` records the name and pid of each process."""
        self.learner: Child | None = None
        self._plan, self._bus, self._watch = plan, bus, watch
        self._stop, self._tell, self._note = stop, tell, note
        self._unready: list[Child] = []
        self._others: list[SupervisedProcess] = []  # agents, members, the prior service, the notifier
        self._meshes: list[SupervisedProcess] = []
        self._server: SupervisedProcess | None = None
        self._fetching: asyncio.Task[None] | None = None

    def keep_server(self, server: EmbeddedServer) -> None:
        without = "the bus is gone, training continues with its last settings"
        restartable = Restartable("nats-server", server.restart, self._bus_answers, lambda: without)
        self._server = SupervisedProcess(restartable, server.child, self._tell, self._note)

    async def start_meshes(self, count: int) -> None:
        """Start the replicas together. One of them is enough for decisions."""
        services = [self._plan.mesh(number) for number in range(1, count + 1)]
        signs = [partial(self._mesh_answers, service.name) for service in services]
        await self._start_all(
            [(service, sign, self._without_a_mesh) for service, sign in zip(services, signs, strict=True)],
            self._meshes,
        )

    def _without_a_mesh(self) -> str:
        others = sum(mesh.is_alive for mesh in self._meshes)
        if others:
            return f"{others} of {len(self._meshes)} replicas continue deciding"
        return "no decisions are made, training continues with its last settings"

    async def start_kg(self) -> bool:
        """Start the prior service, and return whether it answers. The run continues without it."""
        service = self._plan.kg()
        child = await self._child(service)
        answers = await self._shown(child, self._kg_answers(), KG_READY_S)
        if not answers and child.returncode is None:
            self._tell(
                f"kg does not answer after {KG_READY_S:g} s; the run starts without it; see {short_path(child.log)}"
            )
        self._others.append(self._keep(service, child, self._kg_answers, lambda: "agents go without priors"))
        return answers

    async def start_agents(self, pools: list[Pool]) -> None:
        def started(pool: Pool) -> tuple[Service, Callable[[], Awaitable[None]], Callable[[], str]]:
            without = f"training continues without {'it' if len(pool.agents) == 1 else ', '.join(pool.names)}"
            return self._plan.agents(pool), partial(self._watch.wait_for_joins, *pool.names), lambda: without

        await self._start_all([started(pool) for pool in pools], self._others)

    async def start_members(self, members: list[str]) -> None:
        without = "the committee scores without it"
        ready = {name: partial(self._has_listener, names.reward(name)) for name in members}
        await self._start_all(
            [(self._plan.member(name), ready[name], lambda: without) for name in members], self._others
        )

    async def start_notifier(self) -> None:
        """Start the notifier without waiting for it: it reads earlier events from the log."""
        service = self._plan.notifier()
        child = await self._child(service)
        self._others.append(self._keep(service, child, self._notifier_reads, lambda: "no messages are sent"))

    async def start_probes(self) -> None:
        """Fetch the probes in the background; the process ends by itself."""
        child = await self._child(self._plan.probes())
        self._fetching = asyncio.create_task(self._report_end(child), name="probes")

    async def _report_end(self, child: Child) -> None:
        await child.wait()
        if child.returncode and not self._stop.is_set():
            last = (child.tail().splitlines() or [describe_exit(child.returncode)])[-1].removeprefix("error: ")
            self._tell(f"the frontier metrics stay absent: {last}; see {short_path(child.log)}")

    def has_member(self, name: str) -> bool:
        """Whether the member has a process."""
        return any(process.name == f"member-{name}" for process in self._others)

    async def end_member(self, name: str) -> None:
        """End a member's process, if it has one, whether it became ready or not."""
        for process in [process for process in self._others if process.name == f"member-{name}"]:
            self._others.remove(process)
            await process.end(GRACE_S)
        for child in [child for child in self._unready if child.name == f"member-{name}"]:
            self._unready.remove(child)
            await child.end(GRACE_S)

    async def start_learner(self, service: Service) -> Child:
        """Start the learner, or restart it after its end."""
        if self.learner is not None:
            self.learner.close()
        self.learner = await self._child(service)
        self._unready.remove(self.learner)
        return self.learner

    async def end_learner(self) -> None:
        if self.learner is not None:
            await self.learner.end(LEARNER_GRACE_S)

    async def end_others(self) -> None:
        """End all but the server, which still has to log their last messages. The meshes end last."""
        if self._fetching is not None:
            await end(self._fetching)
        ending = [supervised.end(GRACE_S) for supervised in self._others]
        await asyncio.gather(*ending, *(child.end(GRACE_S) for child in self._unready))
        await asyncio.gather(*(mesh.end(GRACE_S) for mesh in self._meshes))

    async def end_server(self) -> None:
        if self._server is not None:
            await self._server.end(GRACE_S)

    def kill(self) -> None:
        """Kill everything but the server."""
        for process in (self.learner, *self._unready, *self._others, *self._meshes):
            if process is not None:
                process.kill()

    async def _start_all(
        self,
        services: list[tuple[Service, Callable[[], Awaitable[None]], Callable[[], str]]],
        supervised: list[SupervisedProcess],
    ) -> None:
        """Start the services together, and append each to `supervised` as soon as it is ready."""
        signs = [asyncio.ensure_future(ready()) for _, ready, _ in services]
        try:
            children = [await self._child(service) for service, _, _ in services]
            for (service, ready, without), child, sign in zip(services, children, signs, strict=True):
                await self._ready(child, sign)
                supervised.append(self._keep(service, child, ready, without))
        finally:
            await end(*signs)

    async def _child(self, service: Service) -> Child:
        if self._stop.is_set():
            raise Stopped
        child = await service.start()
        self._unready.append(child)
        self._note(service.name, child.pid)
        return child

    def _keep(
        self, service: Service, child: Child, ready: Callable[[], Awaitable[None]], without: Callable[[], str]
    ) -> SupervisedProcess:
        self._unready.remove(child)
        return SupervisedProcess(
            Restartable(service.name, service.start, ready, without), child, self._tell, self._note
        )

    async def _ready(self, child: Child, sign: Awaitable[None]) -> None:
        """Wait until the child is ready. Raises OvenError if it ends or is not ready in time."""
        if await self._shown(child, sign, READY_S):
            return
        if child.returncode is not None:
            raise _start_failure(child)
        raise ProcessError(
            f"{child.name} was not ready within {READY_S:g} s; the end of {short_path(child.log)}:\n{child.tail()}"
        )

    async def _shown(self, child: Child, sign: Awaitable[None], limit_s: float) -> bool:
        """Whether the child showed that it is ready before it ended and before the timeout. Raises Stopped."""
        ready = asyncio.ensure_future(sign)
        ended = asyncio.ensure_future(child.wait())
        stopped = asyncio.ensure_future(self._stop.wait())
        waiting = {ready, ended, stopped}
        try:
            await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                raise Stopped
            if ready.done():
                ready.result()
            return ready.done()
        finally:
            await end(*waiting)

    async def _mesh_answers(self, replica: str) -> None:
        await self._answers(Subjects(self._plan.folder.run).history_of(replica), HistoryRequest(limit=1).wire())

    async def _kg_answers(self) -> None:
        await self._answers(names.kg("info"), GraphInfoRequest().wire())

    async def _answers(self, subject: str, request: bytes) -> None:
        while True:
            try:
                await self._bus.request(subject, request, 1)
                return
            except BusError:
                await asyncio.sleep(POLL_S)

    async def _notifier_reads(self) -> None:
        """Wait until the notifier has written its cursor, which it does after reading the log."""
        before = cursor.modified_ns(self._plan.folder.path)
        while cursor.modified_ns(self._plan.folder.path) == before:
            await asyncio.sleep(POLL_S)

    async def _has_listener(self, subject: str) -> None:
        while not await self._bus.has_listener(subject):
            await asyncio.sleep(POLL_S)

    async def _bus_answers(self) -> None:
        """Wait until the restarted server can read the log again."""
        while True:
            try:
                await self._bus.head(self._plan.folder.run)
                return
            except BusError:
                await asyncio.sleep(POLL_S)


def _start_failure(child: Child) -> OvenError:
    """Return why a process did not start: its own error line if there is one, else the end of its log."""
    tail = child.tail()
    last = tail.splitlines()[-1] if tail else ""
    if last.startswith("error: "):
        text = f"{child.name}: {last.removeprefix('error: ')}"
    else:
        text = f"{child.name} did not start ({describe_exit(child.returncode or 0)}); the end of its log:\n{tail}"
    return ConfigError(text) if child.returncode == WRONG_SETTING else ProcessError(text)
