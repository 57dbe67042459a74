"""Starts a run's processes in order, each when the previous one is ready, and shuts them down cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from oven_controller.exporting import export_state
from oven_controller.exporting.export_state import READY_FILE
from oven_controller.notify import notifier_state
from oven_controller.stack.process_plan import Plan, Pool, Service
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
from oven_runs.process.child_process import WRONG_SETTING, Child, describe_exit, short_path
from oven_runs.process.supervisor import Restartable, SupervisedProcess
from oven_runs.server.embedded_server import EmbeddedServer

READY_TIMEOUT_S = 60.0
"""Timeout in seconds for a process to become ready. The first import of an SDK takes 20 s on a busy machine."""
KG_TIMEOUT_S = 20.0
"""Timeout in seconds for the prior service, which serves the knowledge graph, to respond."""
LEARNER_GRACE_S = 20.0
"""Grace period in seconds for the learner to save a checkpoint and end before it is killed."""
GRACE_S = 5.0
"""Grace period in seconds for the other processes to end before they are killed."""
POLL_S = 0.05
"""Seconds between two checks whether a process is ready."""


class StopRequested(Exception):
    """Raised when the user stops the stack while it is starting."""


class _ProcessStart(NamedTuple):
    """A process to start, with the functions that its supervision needs."""

    service: Service
    wait_until_ready: Callable[[], Awaitable[None]]
    describe_consequence: Callable[[], str]
    """Describes how the run continues while the process is down."""


class MemberProcesses:
    """Starts and ends the processes of committee members in response to log events, one change at a time."""

    def __init__(self, processes: Processes, report: Callable[[str], None]) -> None:
        """`report` prints a line."""
        self._processes, self._report = processes, report
        self._lock = asyncio.Lock()
        self._pending_additions: dict[str, str] = {}
        """For each pending command, the member that it adds."""
        self._pending_removals: dict[str, str] = {}
        """For each pending command, the member that it removes."""
        self._tasks: set[asyncio.Task[None]] = set()

    def on_event(self, event: Event) -> None:
        """React to a verified event. A member's process starts when an operator adds the member. The member's key and
        settings exist by then. The process ends when the learner has refused or removed the member."""
        match event.body:
            case OperatorCommand(action="add") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._pending_additions[command.id] = member
                self._schedule(self._start(member), f"add {member}")
            case OperatorCommand(action="remove") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._pending_removals[command.id] = member
            case Receipt() as receipt if receipt.command in self._pending_additions:
                member = self._pending_additions.pop(receipt.command)
                if receipt.status != "applied":
                    self._schedule(self._end(member), f"refuse {member}")
            case Receipt() as receipt if receipt.command in self._pending_removals:
                member = self._pending_removals.pop(receipt.command)
                if receipt.status == "applied":
                    self._schedule(self._end(member), f"remove {member}")

    async def close(self) -> None:
        """Cancel the changes in progress."""
        await end(*self._tasks)

    def _schedule(self, change: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(change, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, member: str) -> None:
        async with self._lock:
            if self._processes.has_member(member):
                return
            try:
                await self._processes.start_members([member])
            except StopRequested:
                pass
            except OvenError as error:
                self._report(f"could not start member {member}: {error}")

    async def _end(self, member: str) -> None:
        async with self._lock:
            await self._processes.end_member(member)
            self._report(f"member {member} has left")


class Processes:
    """The processes of a run. The run ends with the learner. Every other process is restarted if it fails."""

    def __init__(
        self,
        plan: Plan,
        bus: Bus,
        watch: LogWatch,
        stop: asyncio.Event,
        report: Callable[[str], None],
        record_pid: Callable[[str, int], None],
    ) -> None:
        """`stop` is set to end the stack. `report` prints a line. `record_pid` gets each new process's name and pid."""
        self.learner: Child | None = None
        self._plan, self._bus, self._watch = plan, bus, watch
        self._folder = plan.folder.path
        self._stop, self._report, self._record_pid = stop, report, record_pid
        self._starting_children: list[Child] = []
        self._others: list[SupervisedProcess] = []  # agents, members, the prior service, the notifier, exporters
        self._meshes: list[SupervisedProcess] = []
        self._server: SupervisedProcess | None = None
        self._probes_task: asyncio.Task[None] | None = None

    def supervise_server(self, server: EmbeddedServer) -> None:
        consequence = "the bus is down, and training continues with its last settings"
        restartable = Restartable("nats-server", server.restart, self._wait_for_bus, lambda: consequence)
        self._server = SupervisedProcess(restartable, server.child, self._report, self._record_pid)

    async def start_meshes(self, count: int) -> None:
        """Start the replicas together. One running replica is enough for decisions."""
        meshes = [self._plan.mesh(number) for number in range(1, count + 1)]
        starts = [_ProcessStart(mesh, partial(self._wait_for_mesh, mesh.name), self._lost_mesh_text) for mesh in meshes]
        await self._start_all(starts, self._meshes)

    def _lost_mesh_text(self) -> str:
        running_count = sum(mesh.is_alive for mesh in self._meshes)
        if running_count:
            return f"{running_count} of {len(self._meshes)} replicas still make decisions"
        return "no decisions are made, and training continues with its last settings"

    async def start_kg(self) -> bool:
        """Start the prior service, and return whether it responds. The run also works without it."""
        service = self._plan.kg()
        child = await self._start_child(service)
        is_ready = await self._became_ready(child, self._wait_for_kg(), KG_TIMEOUT_S)
        if not is_ready and child.returncode is None:
            self._report(
                f"kg did not respond within {KG_TIMEOUT_S:g} s; the run starts without it; see {short_path(child.log)}"
            )
        start = _ProcessStart(service, self._wait_for_kg, lambda: "agents have no priors")
        self._others.append(self._supervise(start, child))
        return is_ready

    async def start_agents(self, pools: list[Pool]) -> None:
        def plan_start(pool: Pool) -> _ProcessStart:
            lost_agents = "it" if len(pool.agents) == 1 else ", ".join(pool.names)
            wait_until_ready = partial(self._watch.wait_for_joins, *pool.names)
            consequence = f"training continues without {lost_agents}"
            return _ProcessStart(self._plan.agents(pool), wait_until_ready, lambda: consequence)

        await self._start_all([plan_start(pool) for pool in pools], self._others)

    async def start_members(self, members: list[str]) -> None:
        def plan_start(name: str) -> _ProcessStart:
            wait_until_ready = partial(self._wait_for_listener, names.reward(name))
            return _ProcessStart(self._plan.member(name), wait_until_ready, lambda: "the committee scores without it")

        await self._start_all([plan_start(name) for name in members], self._others)

    async def start_notifier(self) -> None:
        """Start the notifier without waiting for it, because it reads earlier events from the log."""
        await self._start_follower(self._plan.notifier(), notifier_state.file(self._folder), "no messages are sent")

    async def start_exporter(self, target: str) -> None:
        """Start an exporter without waiting for it, because it reads earlier events from the log."""
        await self._start_follower(self._plan.exporter(target), export_state.file(self._folder, target), "no exports")

    async def start_metrics(self) -> None:
        """Start the process that computes gauges, without waiting for it."""
        await self._start_follower(self._plan.metrics(), self._folder / READY_FILE, "no metrics")

    async def _start_follower(self, service: Service, file: Path, consequence: str) -> None:
        """Start a process that follows the log, without waiting for it. It writes `file` when it is ready."""
        start = _ProcessStart(service, partial(self._wait_for_file, file), lambda: consequence)
        self._others.append(self._supervise(start, await self._start_child(service)))

    async def start_probes(self) -> None:
        """Fetch the frontier calibrator's answers in the background. The process ends by itself."""
        child = await self._start_child(self._plan.probes())
        self._probes_task = asyncio.create_task(self._report_probes_failure(child), name="probes")

    async def _report_probes_failure(self, child: Child) -> None:
        """Wait until the process ends, and report its error if it failed."""
        await child.wait()
        if child.returncode and not self._stop.is_set():
            lines = child.tail().splitlines() or [describe_exit(child.returncode)]
            cause = lines[-1].removeprefix("error: ")
            self._report(f"there are no frontier metrics: {cause}; see {short_path(child.log)}")

    def has_member(self, name: str) -> bool:
        """Return whether the member has a process."""
        return any(process.name == f"member-{name}" for process in self._others)

    async def end_member(self, name: str) -> None:
        """End a member's process if it has one, even if it is not ready yet."""
        for process in [process for process in self._others if process.name == f"member-{name}"]:
            self._others.remove(process)
            await process.end(GRACE_S)
        for child in [child for child in self._starting_children if child.name == f"member-{name}"]:
            self._starting_children.remove(child)
            await child.end(GRACE_S)

    async def start_learner(self, service: Service) -> Child:
        """Start the learner, or restart it after its end."""
        if self.learner is not None:
            self.learner.close()
        self.learner = await self._start_child(service)
        self._starting_children.remove(self.learner)
        return self.learner

    async def end_learner(self) -> None:
        if self.learner is not None:
            await self.learner.end(LEARNER_GRACE_S)

    async def end_others(self) -> None:
        """End all processes except the learner, and the server, which logs their last messages. The meshes end last."""
        if self._probes_task is not None:
            await end(self._probes_task)
        end_calls = [supervised.end(GRACE_S) for supervised in self._others]
        await asyncio.gather(*end_calls, *(child.end(GRACE_S) for child in self._starting_children))
        await asyncio.gather(*(mesh.end(GRACE_S) for mesh in self._meshes))

    async def end_server(self) -> None:
        if self._server is not None:
            await self._server.end(GRACE_S)

    def kill(self) -> None:
        """Kill all processes except the server."""
        for process in (self.learner, *self._starting_children, *self._others, *self._meshes):
            if process is not None:
                process.kill()

    async def _start_all(self, starts: list[_ProcessStart], supervised: list[SupervisedProcess]) -> None:
        """Start the processes together, and append each to `supervised` as soon as it is ready."""
        ready_tasks = [asyncio.ensure_future(start.wait_until_ready()) for start in starts]
        try:
            children = [await self._start_child(start.service) for start in starts]
            for start, child, task in zip(starts, children, ready_tasks, strict=True):
                await self._wait_until_ready(child, task)
                supervised.append(self._supervise(start, child))
        finally:
            await end(*ready_tasks)

    async def _start_child(self, service: Service) -> Child:
        if self._stop.is_set():
            raise StopRequested
        child = await service.start()
        self._starting_children.append(child)
        self._record_pid(service.name, child.pid)
        return child

    def _supervise(self, start: _ProcessStart, child: Child) -> SupervisedProcess:
        self._starting_children.remove(child)
        service = start.service
        restartable = Restartable(service.name, service.start, start.wait_until_ready, start.describe_consequence)
        return SupervisedProcess(restartable, child, self._report, self._record_pid)

    async def _wait_until_ready(self, child: Child, ready: Awaitable[None]) -> None:
        """Wait until the child is ready. Raises OvenError if it ends first or takes too long."""
        if await self._became_ready(child, ready, READY_TIMEOUT_S):
            return
        if child.returncode is not None:
            raise _start_failure(child)
        raise ProcessError(
            f"{child.name} was not ready within {READY_TIMEOUT_S:g} s; "
            f"the end of {short_path(child.log)}:\n{child.tail()}"
        )

    async def _became_ready(self, child: Child, ready: Awaitable[None], limit_s: float) -> bool:
        """Return whether the child became ready before it ended and before the timeout. Raises StopRequested."""
        ready_task = asyncio.ensure_future(ready)
        stop_task = asyncio.ensure_future(self._stop.wait())
        tasks = {ready_task, stop_task, asyncio.ensure_future(child.wait())}
        try:
            await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if stop_task.done():
                raise StopRequested
            if ready_task.done():
                ready_task.result()
            return ready_task.done()
        finally:
            await end(*tasks)

    async def _wait_for_mesh(self, replica: str) -> None:
        """Wait until the replica answers a history request."""
        await self._wait_for_reply(Subjects(self._plan.folder.run).history_of(replica), HistoryRequest(limit=1).wire())

    async def _wait_for_kg(self) -> None:
        await self._wait_for_reply(names.kg("info"), GraphInfoRequest().wire())

    async def _wait_for_reply(self, subject: str, request: bytes) -> None:
        while True:
            try:
                await self._bus.request(subject, request, 1)
                return
            except BusError:
                await asyncio.sleep(POLL_S)

    async def _wait_for_file(self, path: Path) -> None:
        """Wait until the process has written this file."""
        before = _modified_ns(path)
        while _modified_ns(path) == before:
            await asyncio.sleep(POLL_S)

    async def _wait_for_listener(self, subject: str) -> None:
        while not await self._bus.has_listener(subject):
            await asyncio.sleep(POLL_S)

    async def _wait_for_bus(self) -> None:
        """Wait until the restarted server can read the log again."""
        while True:
            try:
                await self._bus.head(self._plan.folder.run)
                return
            except BusError:
                await asyncio.sleep(POLL_S)


def _modified_ns(path: Path) -> int:
    """Return when the file was last written, in nanoseconds since 1970, or 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _start_failure(child: Child) -> OvenError:
    """Return an error with the reason why a process did not start: its own error line, or else the end of its log."""
    tail = child.tail()
    last_line = tail.splitlines()[-1] if tail else ""
    if last_line.startswith("error: "):
        message = f"{child.name}: {last_line.removeprefix('error: ')}"
    else:
        message = f"{child.name} did not start ({describe_exit(child.returncode or 0)}); the end of its log:\n{tail}"
    return ConfigError(message) if child.returncode == WRONG_SETTING else ProcessError(message)
