"""`up` and `run --`: one run from its folder to its summary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oven_controller import relaunch, streams, tls
from oven_controller import server as servers
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError, ConfigError, OvenError
from oven_controller.home import IMPORTED, Home, RunFolder, Status
from oven_controller.settings import Resolved, agent_specs, per_process
from oven_controller.signing import Keyring
from oven_controller.stack import exposure, foreground, plugins, priors
from oven_controller.stack.headless import Headless, first_line
from oven_controller.stack.plan import Plan, Pool, export_lines, own_command, pools
from oven_controller.stack.process import Child
from oven_controller.stack.processes import Processes, Stopped
from oven_controller.stack.reading import export
from oven_controller.stack.relaunching import Relaunching
from oven_controller.stack.relay import relay
from oven_controller.stack.screen import Screen
from oven_controller.stack.watch import Watch
from oven_controller.stack.words import how, short

DRAIN_S = 5.0
ROLES = ("admin", "learner", "mesh", "history", "kg", "operator", "monitor")
"""One key each; agents and committee members have one by name."""

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

    @property
    def monitored(self) -> bool:
        """Whether the monitor opens in the terminal. Around a script the terminal is the script's, and who is asked to
        start a learner of their own has to see with what."""
        return self.learner and not self.command and not self.resolved.settings.headless


async def up(request: Request, home: Home, out: Out) -> int:
    """Run it to its end. Returns the exit code."""
    settings = request.resolved.settings
    if settings.port is not None and not settings.nats and not servers.is_free(settings.port):
        raise ConfigError(
            f"port {settings.port} on 127.0.0.1 is taken; choose another with --port, or leave it out for a free one"
        )
    pools(agent_specs(settings), per_process(settings))
    folder = home.find(request.run) if request.resume else home.create(request.run, settings.recipe)
    if request.resume and folder.info().recipe == IMPORTED:
        raise ConfigError(f"run {folder.run!r} was imported and cannot go on; start another with `oven-controller run`")
    if request.resume and folder.status() == "completed" and not request.command and request.learner:
        raise ConfigError(f"run {folder.run!r} is completed; start another with `oven-controller up`")
    screen = Screen(out, folder.logs / "up.log")
    stack = _Up(request, folder, screen)
    with stack.signals():
        try:
            with folder.hold():
                try:
                    code = await stack.run()
                except OvenError as error:
                    await screen.close()
                    if error.exit_code == 2 and not request.resume:
                        shutil.rmtree(folder.path, ignore_errors=True)  # its name stays free for the next try
                    else:
                        folder.write_info(folder.info().model_copy(update={"ended": "failed", "children": {}}))
                    raise
            # The stack is down and its lock is free: nobody has to wait until a person has looked enough.
            await stack.looked_at()
        finally:
            await screen.close()
    stack.summary()
    return code


class _Up:
    def __init__(self, request: Request, folder: RunFolder, screen: Screen) -> None:
        self.request = request
        self.settings = request.resolved.settings
        self.folder = folder
        self.out = screen
        self.stop = asyncio.Event()
        self.signal = 0
        self.script_offset = 0
        self.over = False
        self.processes: Processes | None = None
        self.server: servers.EmbeddedServer | None = None
        self.report = Headless(screen, datetime.now(UTC))

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def run(self) -> int:
        self.out(first_line(self.request.resolved))
        self._prepare()
        try:
            url = await self._serve()
            self.out(f"run {self.folder.run}, bus {url}, folder {short(self.folder.path)}")
            if self.folder.keys() is None:
                self.out("events are not signed: that takes a key for each role, --creds FOLDER of `creds server`")
            trust = tls.trusting(self.settings.tls_ca) if self.settings.tls_ca else None
            if self.settings.nats and (warning := await exposure.checked(url, self.settings.tls_ca, trust)):
                self.out(f"warning: {warning}")
            async with Bus.connect(url, self._credentials(), name="admin", trust=trust) as bus:
                return await self._with_bus(bus, Plan(self.folder, url, self.settings.otlp))
        finally:
            if self.processes is not None:
                await self.processes.end_server()
            elif self.server is not None:
                await self.server.stop()
            self.over = True

    async def looked_at(self) -> None:
        """Until the monitor is quit; a signal does not wait for that."""
        stopped = asyncio.create_task(self.stop.wait())
        closed = asyncio.create_task(self.out.closed())
        await asyncio.wait({stopped, closed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await self.out.close()
        await closed

    def _prepare(self) -> None:
        start = self.request.resolved.start
        self.folder.export.unlink(missing_ok=True)  # what an earlier incarnation exported is no longer the whole
        self._write_config()
        self._note(
            recipe=self.settings.recipe,
            start=start.name if start else "",
            drill=start.label if start else "",
            pid=os.getpid(),
            embedded=not self.settings.nats,
            creds=str(Path(self.settings.creds).absolute()) if self.settings.creds else "",
            tls_ca=str(Path(self.settings.tls_ca).absolute()) if self.settings.tls_ca else "",
            ended=None,
        )

    async def _serve(self) -> str:
        if self.settings.nats:
            self._note(url=self.settings.nats)
            return self.settings.nats
        for role in ROLES:
            self.folder.add_user(role, role)  # type: ignore[arg-type]
        for pool in self._pools():
            self.folder.add_user("agent", pool.key, pool.names)
        for member in self.settings.committee.members:
            self.folder.add_user("member", member)
        log = self.folder.logs / "nats-server.log"
        self.server = await servers.EmbeddedServer.start(self.folder.server, log, self.settings.port)
        self._note(url=self.server.url, port=self.server.port)
        return self.server.url

    async def _with_bus(self, bus: Bus, plan: Plan) -> int:
        made = not (self.request.resume and await streams.exists(bus.jetstream, self.folder.run))
        if made:
            await streams.create(bus.jetstream, self.folder.run, self.settings.stream_replicas)
        head = await bus.head(self.folder.run)
        code = 3
        keyring = Keyring(self.folder.pin())
        async with Watch(bus, self.folder.run, keyring, head, self.report.replayed, self.report.event) as watch:
            processes = Processes(plan, bus, watch, self.stop, self.out, self._note_child)
            self.processes = processes
            if self.server is not None:
                self._note_child("nats-server", self.server.child.pid)
                processes.keep_server(self.server)
            try:
                relaunching = Relaunching(self.folder.path, self._resume_command(), self.out)
                await self._start(processes, bus, plan)
                await self._wait(processes.learner)
                while not self.stop.is_set() and (resume_from := relaunching.again()) is not None:
                    await self._start_learner(processes, plan, resume_from)
                    await self._wait(processes.learner)
                code = self._ended(processes.learner)
            except Stopped:
                code = self._stopped()
            except OvenError as error:
                await self._end(processes, bus, watch)
                if error.exit_code == 2 and made:
                    await streams.delete(bus.jetstream, self.folder.run)
                raise
            await self._end(processes, bus, watch)
            await self._export(bus)
        self._note(ended=self._status(code), children={})
        return code

    async def _start(self, processes: Processes, bus: Bus, plan: Plan) -> None:
        await processes.start_meshes(self.settings.meshes)
        if self.settings.kg:
            await self._take_priors(processes, bus)
        await processes.start_agents(self._pools())
        await processes.start_members(list(self.settings.committee.members))
        await self._open_monitor(plan)
        if self.request.command or self.request.learner:
            await self._start_learner(processes, plan, relaunch.LATEST if self.request.resume else "")
        else:
            self.out("waiting for a learner; in its shell:")
            for line in export_lines(plan.environment("learner")):
                self.out(f"  {line}")

    async def _start_learner(self, processes: Processes, plan: Plan, resume_from: str) -> None:
        if self.request.command:
            script = plan.script(self.request.command, resume_from)
            self.script_offset = script.log.stat().st_size if script.log.exists() else 0
            await processes.start_learner(script)
        else:
            learner = plan.learner(resume_from)
            await processes.start_learner(learner)
            self.out(f"the learner starts; what it says is in {short(learner.log)}")

    def _resume_command(self) -> str:
        if self.request.command:
            return f"oven-controller run --resume --run {self.folder.run} -- {shlex.join(self.request.command)}"
        return f"oven-controller up --resume --run {self.folder.run}"

    def _pools(self) -> list[Pool]:
        return pools(agent_specs(self.settings), per_process(self.settings))

    async def _take_priors(self, processes: Processes, bus: Bus) -> None:
        """What the prior service knows of changes as such becomes part of the run's rules, before the learner reads
        them. It is no condition of the run."""
        if "kg" not in plugins.points("processes"):
            self.out('the prior service is not installed (`pip install "oven-controller[kg]"`): agents go without')
            return
        if not await processes.start_kg():
            return
        try:
            info = await priors.ask(bus)
        except BusError as error:
            self.out(f"the rules stay as they are: {error}")
            return
        before, rules = self.settings.rules, priors.merged(self.settings.rules, info)
        pairs, needs = (
            len(rules.contradictions) - len(before.contradictions),
            len(rules.requires) - len(before.requires),
        )
        self.settings = self.settings.model_copy(update={"rules": rules})
        self._write_config()
        self.out(f"rules from kg (graph {info.graph[:12]}): +{pairs} contradictions, +{needs} requirements")

    async def _open_monitor(self, plan: Plan) -> None:
        if not self.request.monitored or not foreground.has_terminal():
            return
        if "monitor" not in plugins.points("processes"):
            self.out('printing lines; `pip install "oven-controller[tui]"` brings the monitor')
            return
        await self.out.open(own_command("monitor"), plan.environment("monitor"), self._monitor_closed)
        self._note_child("monitor", self.out.pid)

    def _monitor_closed(self) -> str:
        """What to say then; nothing if the run is over, too."""
        if self.over or self.stop.is_set():
            return ""
        with contextlib.suppress(OSError):
            self._note(children={n: pid for n, pid in self.folder.info().children.items() if n != "monitor"})
        return f"the run goes on; `oven-controller monitor {self.folder.run}` opens it again; Ctrl-C ends the run"

    async def _wait(self, learner: Child | None) -> None:
        """Until the learner ends or a signal comes."""
        stopped = asyncio.create_task(self.stop.wait())
        script_ended = asyncio.Event()
        waiting: set[asyncio.Task[object]] = {stopped}
        copying = None
        if learner is not None:
            waiting.add(asyncio.create_task(learner.wait()))
            if self.request.command and not self.request.quiet:
                copying = asyncio.create_task(relay(learner.log, self.script_offset, script_ended))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            script_ended.set()
            if copying is not None:
                await copying
            for task in waiting:
                task.cancel()

    def _stopped(self) -> int:
        return 130 if self.signal == signal.SIGINT else 0

    def _ended(self, child: Child | None) -> int:
        """The exit code: of a learner that ended by itself, else of the signal."""
        if child is None or child.returncode is None:
            return self._stopped()
        code = child.returncode
        if self.request.command or code == 0:
            return code
        self.out(f"the learner died ({how(code)}); the end of {short(child.log)}:")
        for line in child.tail().splitlines():
            self.out(f"  {line}")
        return 2 if code == 2 else 3

    async def _end(self, processes: Processes, bus: Bus, watch: Watch) -> None:
        """The learner first, so that its checkpoint and its last word still reach the log."""
        if self.stop.is_set():
            await self.out.close()
        if processes.learner is not None and processes.learner.returncode is None:
            self.out("ending the learner in order (once more to kill it)")
        await processes.end_learner()
        await self._drain(bus, watch)  # what the learner said last, before the others say goodbye
        await processes.end_others()
        await self._drain(bus, watch)

    async def _drain(self, bus: Bus, watch: Watch) -> None:
        """Until all that is in the log was read. A server that is being started again just now is waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while True:
                    try:
                        return await watch.reached(await bus.head(self.folder.run))
                    except BusError:
                        await asyncio.sleep(0.1)

    async def _export(self, bus: Bus) -> None:
        try:
            async with asyncio.timeout(60):
                await export(bus, self.folder)
        except (BusError, TimeoutError, OSError) as error:
            self.out(
                f"the log could not be exported ({error}); `oven-controller log {self.folder.run}` reads the store"
            )

    def summary(self) -> None:
        if not self.report.view.seq:
            self.out("nothing was logged")
            return
        for line in self.report.summary():
            self.out(line)
        where = self.folder.export if self.folder.export.exists() else self.folder.server.folder
        self.out(f"log {short(where)}; check it with `oven-controller replay {self.folder.run}`")

    def _status(self, code: int) -> Status:
        ended = self.report.view.ended
        if code == 0 and ended is not None:
            return ended.reason
        return "stopped" if code in (0, 130) else "failed"

    def _told(self, number: int) -> None:
        if self.stop.is_set() and self.processes is not None:  # asked twice: no more waiting
            self.processes.kill()
        self.signal = self.signal or number
        self.stop.set()

    def _credentials(self) -> Credentials | None:
        path = self.folder.credentials("admin")
        return Credentials.load(path) if path else None

    def _note(self, **changes: object) -> None:
        self.folder.write_info(self.folder.info().model_copy(update=changes))

    def _note_child(self, name: str, pid: int) -> None:
        try:
            self._note(children={**self.folder.info().children, name: pid})
        except OSError as error:  # a full disk ends no run
            self.out(f"run.json could not be written ({error}): it does not say that {name} is pid {pid}")

    def _write_config(self) -> None:
        self.folder.config.write_text(self.settings.model_dump_json(indent=1) + "\n")
