"""`up` and `run --`: the server, the mesh, the agents and the learner of one run, started and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oven_controller import server as servers
from oven_controller import streams
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError, ConfigError, OvenError, ProcessError
from oven_controller.home import Home, RunFolder, Status
from oven_controller.messages import HistoryRequest
from oven_controller.names import Subjects
from oven_controller.settings import Resolved, agent_specs
from oven_controller.stack.headless import Headless, first_line
from oven_controller.stack.plan import Plan, Service, export_lines
from oven_controller.stack.process import Child
from oven_controller.stack.reading import export
from oven_controller.stack.relay import relay
from oven_controller.stack.watch import Watch

READY_S = 20.0
LEARNER_GRACE_S = 20.0
GRACE_S = 5.0
DRAIN_S = 3.0

Out = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What the command line asked for. `command`: a script in the learner's place; `learner` False: nobody yet."""

    resolved: Resolved
    run: str | None = None
    resume: bool = False
    learner: bool = True
    command: tuple[str, ...] = ()
    quiet: bool = False
    note: str = ""
    """Said after the first line, which belongs to the start."""


class _Stopped(Exception):
    """A signal came while the stack was being started."""


async def up(request: Request, home: Home, out: Out) -> int:
    """Run it to its end. Returns the exit code."""
    settings = request.resolved.settings
    if settings.port is not None and not settings.nats and not servers.is_free(settings.port):
        raise ConfigError(
            f"port {settings.port} on 127.0.0.1 is taken; choose another with --port, or leave it out for a free one"
        )
    agent_specs(settings)
    folder = home.find(request.run) if request.resume else home.create(request.run, settings.recipe)
    with folder.hold():
        try:
            return await _Up(request, home, folder, out).run()
        except OvenError as error:
            if error.exit_code == 2 and not request.resume:
                shutil.rmtree(folder.path, ignore_errors=True)  # its name stays free for the next try
            else:
                folder.write_info(folder.info().model_copy(update={"ended": "failed", "children": {}}))
            raise


class _Up:
    def __init__(self, request: Request, home: Home, folder: RunFolder, out: Out) -> None:
        self.request = request
        self.settings = request.resolved.settings
        self.home = home
        self.folder = folder
        self.out = out
        self.stop = asyncio.Event()
        self.signal = 0
        self.script_offset = 0
        self.learner: Child | None = None
        self.mesh: Child | None = None
        self.agents: list[Child] = []
        self.server: servers.EmbeddedServer | None = None
        self.report = Headless(out, datetime.now(UTC))

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told, number)
        self.out(first_line(self.request.resolved))
        if self.request.note:
            self.out(self.request.note)
        self._prepare()
        try:
            try:
                url = await self._serve()
                self.out(f"run {self.folder.run}, bus {url}, folder {_short(self.folder.path)}")
                async with Bus.connect(url, self._credentials(), name="admin") as bus:
                    return await self._with_bus(bus, Plan(self.folder, url))
            finally:
                if self.server is not None:
                    await self.server.stop()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _prepare(self) -> None:
        start = self.request.resolved.start
        self.folder.export.unlink(missing_ok=True)  # what an earlier incarnation exported is no longer the whole
        self.folder.config.write_text(self.settings.model_dump_json(indent=1) + "\n")
        self._note(
            recipe=self.settings.recipe,
            start=start.name if start else "",
            drill=start.label if start else "",
            pid=os.getpid(),
            embedded=not self.settings.nats,
            creds=str(Path(self.settings.creds).absolute()) if self.settings.creds else "",
            ended=None,
        )

    async def _serve(self) -> str:
        if self.settings.nats:
            self._note(url=self.settings.nats)
            return self.settings.nats
        for role in ("admin", "learner", "mesh", "history", "operator", "monitor"):
            self.folder.add_user(role, role)
        for spec in agent_specs(self.settings):
            self.folder.add_user("agent", spec.name)
        log = self.folder.logs / "nats-server.log"
        self.server = await servers.EmbeddedServer.start(self.folder.server, log, self.settings.port)
        self._note(url=self.server.url, port=self.server.port)
        return self.server.url

    async def _with_bus(self, bus: Bus, plan: Plan) -> int:
        made = not (self.request.resume and await streams.exists(bus.jetstream, self.folder.run))
        if made:
            await streams.create(bus.jetstream, self.folder.run)
        head = await bus.head(self.folder.run)
        code = 3
        async with Watch(bus, self.folder.run, head, self.report.replayed, self.report.event) as watch:
            try:
                await self._start(bus, plan, watch)
                code = await self._wait()
            except _Stopped:
                code = 130 if self.signal == signal.SIGINT else 0
            except OvenError as error:
                await self._end(bus, watch)
                if error.exit_code == 2 and made:
                    await streams.delete(bus.jetstream, self.folder.run)
                raise
            await self._end(bus, watch)
            await self._export(bus)
        self._note(ended=self._status(code), children={})
        self._summary()
        return code

    async def _start(self, bus: Bus, plan: Plan, watch: Watch) -> None:
        self.mesh = await self._child(plan.mesh())
        await self._ready(self.mesh, self._mesh_answers(bus))
        specs = agent_specs(self.settings)
        for spec in specs:
            self.agents.append(await self._child(plan.agent(spec)))
        for spec, child in zip(specs, self.agents, strict=True):
            await self._ready(child, watch.joined(spec.name))
        if self.request.command:
            script = plan.script(self.request.command)
            self.script_offset = script.log.stat().st_size if script.log.exists() else 0
            self.learner = await self._child(script)
        elif self.request.learner:
            learner = plan.learner()
            self.learner = await self._child(learner)
            self.out(f"the learner starts; what it says is in {_short(learner.log)}")
        else:
            self.out("waiting for a learner; in its shell:")
            for line in export_lines(plan.environment("learner")):
                self.out(f"  {line}")

    async def _child(self, service: Service) -> Child:
        if self.stop.is_set():
            raise _Stopped
        child = await service.start()
        self._note_child(service.name, child.pid)
        return child

    async def _mesh_answers(self, bus: Bus) -> None:
        while True:
            try:
                await bus.request(Subjects(self.folder.run).history, HistoryRequest(limit=1).wire(), 1)
                return
            except BusError:
                await asyncio.sleep(0.05)

    async def _ready(self, child: Child, sign: Awaitable[None]) -> None:
        """Until the child shows that it is ready. Raises ProcessError when it ends or says nothing for too long."""
        ready = asyncio.ensure_future(sign)
        ended = asyncio.ensure_future(child.wait())
        stopped = asyncio.ensure_future(self.stop.wait())
        waiting = {ready, ended, stopped}
        try:
            await asyncio.wait(waiting, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            if stopped.done():
                raise _Stopped
            if ended.done():
                raise _start_failure(child)
            raise ProcessError(
                f"{child.name} was not ready within {READY_S:g} s; the end of {_short(child.log)}:\n{child.tail()}"
            )
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait(self) -> int:
        """Until the learner ends or a signal comes. Whatever else dies is told, and training goes on."""
        stopped = asyncio.create_task(self.stop.wait())
        lives: dict[asyncio.Task[int], Child] = {}
        for child in (self.learner, self.mesh, *self.agents, self.server.child if self.server else None):
            if child is not None:
                lives[asyncio.create_task(child.wait())] = child
        script_ended = asyncio.Event()
        copying = None
        if self.request.command and not self.request.quiet and self.learner:
            copying = asyncio.create_task(relay(self.learner.log, self.script_offset, script_ended))
        try:
            while True:
                done, _ = await asyncio.wait([stopped, *lives], return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in lives if task in done]:
                    ended = lives.pop(task)
                    if ended is self.learner:
                        return self._learner_ended(ended)
                    self._died(ended)
                if stopped in done:
                    return 130 if self.signal == signal.SIGINT else 0
        finally:
            script_ended.set()
            if copying is not None:
                await copying
            for waiting in (stopped, *lives):
                waiting.cancel()

    def _learner_ended(self, child: Child) -> int:
        code = child.returncode or 0
        if self.request.command:
            return code
        if code == 0:
            return 0
        self.out(f"the learner died ({_how(code)}); the end of {_short(child.log)}:")
        for line in child.tail().splitlines():
            self.out(f"  {line}")
        return 2 if code == 2 else 3

    def _died(self, child: Child) -> None:
        meaning = "training goes on without it"
        if child is self.mesh:
            meaning = "no more decisions are made; training goes on with its last settings"
        elif self.server is not None and child is self.server.child:
            meaning = "the bus is gone; training goes on with its last settings"
        self.out(f"{child.name} ended ({_how(child.returncode or 0)}): {meaning}; see {_short(child.log)}")

    async def _end(self, bus: Bus, watch: Watch) -> None:
        """The learner first, so that its checkpoint and its last word still reach the log."""
        if self.learner is not None:
            if self.learner.returncode is None:
                self.out("ending the learner; it writes a checkpoint first (once more to kill it)")
            await self.learner.end(LEARNER_GRACE_S)
        await self._drain(bus, watch)  # what the learner said last, before the others say goodbye
        await asyncio.gather(*(agent.end(GRACE_S) for agent in self.agents))
        if self.mesh is not None:
            await self.mesh.end(GRACE_S)
        await self._drain(bus, watch)

    async def _drain(self, bus: Bus, watch: Watch) -> None:
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await watch.reached(await bus.head(self.folder.run))

    async def _export(self, bus: Bus) -> None:
        try:
            async with asyncio.timeout(60):
                await export(bus, self.folder)
        except (BusError, TimeoutError, OSError) as error:
            self.out(
                f"the log could not be exported ({error}); `oven-controller log {self.folder.run}` reads the store"
            )

    def _summary(self) -> None:
        if not self.report.view.seq:
            self.out("nothing was logged")
            return
        for line in self.report.summary():
            self.out(line)
        where = self.folder.export if self.folder.export.exists() else self.folder.server.folder
        self.out(f"log {_short(where)}; check it with `oven-controller replay {self.folder.run}`")

    def _status(self, code: int) -> Status:
        ended = self.report.view.ended
        if code == 0 and ended is not None:
            return ended.reason
        return "stopped" if code in (0, 130) else "failed"

    def _told(self, number: int) -> None:
        if self.stop.is_set():  # asked twice: no more waiting
            for child in (self.learner, *self.agents, self.mesh):
                if child is not None:
                    child.kill()
        self.signal = self.signal or number
        self.stop.set()

    def _credentials(self) -> Credentials | None:
        path = self.folder.credentials("admin")
        return Credentials.load(path) if path else None

    def _note(self, **changes: object) -> None:
        self.folder.write_info(self.folder.info().model_copy(update=changes))

    def _note_child(self, name: str, pid: int) -> None:
        server = {"nats-server": self.server.child.pid} if self.server else {}
        self._note(children={**server, **self.folder.info().children, name: pid})


def _start_failure(child: Child) -> OvenError:
    """Why it did not start: its own words when they are one error line, else the end of its log."""
    tail = child.tail()
    last = tail.splitlines()[-1] if tail else ""
    wrong_setting = child.returncode == 2
    if last.startswith("error: "):
        text = f"{child.name}: {last.removeprefix('error: ')}"
    else:
        text = f"{child.name} did not start ({_how(child.returncode or 0)}); the end of its log:\n{tail}"
    return ConfigError(text) if wrong_setting else ProcessError(text)


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _short(path: Path) -> str:
    """Relative to here where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
