"""`up` and `run --`: one run from its folder to its summary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from oven_controller.notify import cursor, recipients, saved_addresses
from oven_controller.stack import kg_rules, message_floods
from oven_controller.stack.agent_keys import revoke
from oven_controller.stack.line_output import Headless, first_line
from oven_controller.stack.log_keeper import LogKeeper
from oven_controller.stack.output import Screen, relay
from oven_controller.stack.plan import Plan, Pool, export_lines, own_command, pools
from oven_controller.stack.preflight_checks import Request, check, exposure_warning
from oven_controller.stack.process_table import is_installed
from oven_controller.stack.processes import Members, Processes, Stopped
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, ConfigError, OvenError, ProcessError
from oven_core.protocol.events import Event
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_runs.access.log_watch import Watch
from oven_runs.home import relaunch
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.relaunch import LearnerRelaunch
from oven_runs.home.run_folder import Home, RunFolder, Status
from oven_runs.process import signals, terminal
from oven_runs.process.child import Child, how, short
from oven_runs.server import embedded as servers
from oven_runs.settings.agents import agent_specs, per_process

ROLES = ("admin", "learner", "mesh", "history", "kg", "operator", "monitor")
"""One key each; agents and committee members have one by name."""

Out = Callable[[str], None]


async def up(request: Request, home: Home, out: Out) -> int:
    """Run it to its end. Returns the exit code."""
    check(request, home)
    recipe = request.resolved.settings.recipe
    folder = home.find(request.run) if request.resume else home.create(request.run, recipe)
    screen = Screen(out, folder.logs / "up.log")
    stack = _Up(request, folder, screen)
    with signals.handled_by(stack.on_signal):
        try:
            with folder.hold():
                try:
                    code = await stack.run()
                except OvenError as error:
                    await screen.close()
                    if error.exit_code == 2 and not request.resume:
                        shutil.rmtree(folder.path, ignore_errors=True)  # its name stays free for the next try
                    else:
                        stack.failed()
                    raise
            # The stack is down and its lock is free: nobody has to wait until a person has looked enough.
            await stack.until_monitor_is_quit()
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
        self.members: Members | None = None
        self.server: servers.EmbeddedServer | None = None
        self.report = Headless(screen, datetime.now(UTC))
        self.log = LogKeeper(folder, self.report, screen)
        self.floods = message_floods.FloodDetector(self._on_flood)
        self.leaving: set[asyncio.Task[None]] = set()  # a task that nobody holds may vanish

    async def run(self) -> int:
        self.out(first_line(self.request.resolved))
        self._prepare()
        try:
            url = await self._serve()
            self.out(f"run {self.folder.run}, bus {url}, folder {short(self.folder.path)}")
            if self.folder.keys() is None:
                self.out("events are not signed: that takes a key for each role, --creds FOLDER of `creds server`")
            trust = tls.trusting(self.settings.tls_ca) if self.settings.tls_ca else None
            if self.settings.nats and (warning := await exposure_warning(url, self.settings.tls_ca, trust)):
                self.out(f"warning: {warning}")
            async with Bus.connect(url, self._credentials(), name="admin", trust=trust) as bus:
                kg_folder = kg if isinstance(kg := self.settings.kg, str) else ""
                plan = Plan(self.folder, url, self.settings.otlp, self.settings.agents_memory_mb, kg_folder)
                return await self._with_bus(bus, plan)
        finally:
            if self.processes is not None:
                await self.processes.end_server()
            elif self.server is not None:
                await self.server.stop()
            self.over = True

    async def until_monitor_is_quit(self) -> None:
        """Until the monitor is quit; a signal does not wait for that."""
        stopped = asyncio.create_task(self.stop.wait())
        closed = asyncio.create_task(self.out.closed())
        await asyncio.wait({stopped, closed}, return_when=asyncio.FIRST_COMPLETED)
        await end(stopped)
        await self.out.close()
        await closed

    def _prepare(self) -> None:
        """Raises ProcessError where the disk takes nothing."""
        start = self.request.resolved.start
        try:
            self._keep_addresses()
            self._write_config()
        except OSError as error:
            raise ProcessError(
                f"{self.folder.config} cannot be written ({error.strerror}): make room, or set OVEN_HOME elsewhere"
            ) from error
        self._note(
            mirrored=True,  # what an earlier incarnation exported is no longer the whole
            recipe=self.settings.recipe,
            start=start.name if start else "",
            drill=start.label if start else "",
            pid=os.getpid(),
            embedded=not self.settings.nats,
            creds=str(Path(self.settings.creds).absolute()) if self.settings.creds else "",
            tls_ca=str(Path(self.settings.tls_ca).absolute()) if self.settings.tls_ca else "",
            learner_end="",
            ended=None,
        )

    def _keep_addresses(self) -> None:
        """Those that messages go to, out of the settings. Of a new run the log is told from its beginning."""
        settings = saved_addresses.save(self.folder.path, self.settings.notify)
        self.settings = self.settings.model_copy(update={"notify": settings})
        if settings.to and not self.request.resume:
            cursor.save(self.folder.path, cursor.Cursor())
        called = recipients.resolve(settings, os.environ, self.folder.path)
        if called:
            self.out(f"messages go to {', '.join(one.name for one in called)}")
        for warning in recipients.tls_warnings(called):
            self.out(f"warning: {warning}")

    async def _serve(self) -> str:
        if self.settings.nats:
            self._note(url=self.settings.nats)
            return self.settings.nats
        for role in ROLES:
            self.folder.add_user(role, role)  # type: ignore[arg-type]
        for pool in self._pools():
            self.folder.add_user("agent", pool.key, pool.names)
        for member in self.settings.committee.judges:
            self.folder.add_user("member", member)
        log = self.folder.logs / "nats-server.log"
        self.server = await servers.EmbeddedServer.start(self.folder.server, log, self.settings.port)
        self._note(url=self.server.url, port=self.server.port)
        return self.server.url

    async def _with_bus(self, bus: Bus, plan: Plan) -> int:
        made = not (self.request.resume and await streams.exists(bus.jetstream, self.folder.run))
        if made:
            if self.request.resume and self.folder.export.exists() and self.folder.export.stat().st_size:
                raise ConfigError(
                    f"run {self.folder.run!r} cannot continue: its store is gone, and {self.folder.export} is all that "
                    "is left of its log; start another run"
                )
            await streams.create(bus.jetstream, self.folder.run, self.settings.stream_replicas)
        await self._keep_completions(bus)
        code = 3
        keyring = Keyring(self.folder.pin())
        async with contextlib.AsyncExitStack() as around:
            await self.log.append_kept(bus)
            head = await bus.head(self.folder.run)
            mirror = around.enter_context(contextlib.closing(Mirror(self.folder.export)))
            watch = await around.enter_async_context(
                Watch(bus, self.folder.run, keyring, head, self.report.replayed, self._on_event, mirror.take)
            )
            keeping = asyncio.create_task(self.log.keep(mirror, self.server is not None), name="keep-log")
            around.callback(keeping.cancel)
            processes = Processes(plan, bus, watch, self.stop, self.out, self._note_child)
            self.processes = processes
            self.members = Members(processes, self.out)
            if self.server is not None:
                self._note_child("nats-server", self.server.child.pid)
                processes.keep_server(self.server)
            try:
                relaunching = LearnerRelaunch(self.folder.path, self._resume_command(), self.out)
                await self._start(processes, bus, plan)
                await self._wait(processes.learner)
                while not self.stop.is_set() and (resume_from := relaunching.again()) is not None:
                    await self._start_learner(processes, plan, resume_from)
                    await self._wait(processes.learner)
                code = self._ended(processes.learner)
            except Stopped:
                code = self._stopped()
            except OvenError as error:
                await self._end(processes, bus, watch, 3)
                if error.exit_code == 2 and made:
                    await streams.delete(bus.jetstream, self.folder.run)
                raise
            await self._end(processes, bus, watch, code)
            await self.log.finish(bus, watch, mirror)
        own = processes.learner if code == 0 and not self.request.command else None
        self.log.find_missing(own is not None and own.returncode == 0)
        noted = self._note(ended=self._status(code), children={})
        return 3 if code == 0 and (self.log.missing or not noted) else code

    async def _keep_completions(self, bus: Bus) -> None:
        """A run without them is the same run."""
        if self.settings.completions_every:
            replicas = self.settings.stream_replicas
            if why := await streams.create_completions(bus.jetstream, self.folder.run, replicas):
                self.out(f"no sampled completions are kept, the server refused their stream: {why}")

    async def _start(self, processes: Processes, bus: Bus, plan: Plan) -> None:
        await processes.start_meshes(self.settings.meshes)
        if self.settings.kg:
            await self._take_priors(processes, bus)
        await processes.start_agents(self._pools())
        await processes.start_members(list(self.settings.committee.judges))
        if self.settings.committee.frontier.model:
            await processes.start_probes()
        if self.settings.notify.to:
            await processes.start_notifier()
        await self._open_monitor(plan)
        if self.request.command or self.request.learner:
            await self._start_learner(processes, plan, relaunch.LATEST if self.request.resume else "")
            return
        environment = plan.attached_learner(resumed=self.request.resume)
        if self.request.announced is not None:
            where = {"run": self.folder.run, "url": plan.url, "folder": str(self.folder.path.absolute())}
            self.request.announced(where | {"environment": environment})
        else:
            self.out("waiting for a learner; in its shell:")
            for line in export_lines(environment):
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
        them. It is not a condition of the run."""
        if not is_installed("kg"):
            self.out('the prior service is not installed (`pip install "oven-controller[kg]"`): agents go without')
            return
        if not await processes.start_kg():
            return
        try:
            info = await kg_rules.ask(bus)
        except BusError as error:
            self.out(f"the rules stay as they are: {error}")
            return
        before, rules = self.settings.rules, kg_rules.merged(self.settings.rules, info)
        pairs, needs = (
            len(rules.contradictions) - len(before.contradictions),
            len(rules.requires) - len(before.requires),
        )
        self.settings = self.settings.model_copy(update={"rules": rules})
        self._write_config()
        self.out(f"rules from kg (graph {info.graph[:12]}): +{pairs} contradictions, +{needs} requirements")

    async def _open_monitor(self, plan: Plan) -> None:
        if not self.request.monitored or not terminal.has_terminal():
            return
        if not is_installed("monitor"):
            self.out('printing lines; `pip install "oven-controller[tui]"` brings the monitor')
            return
        await self.out.open([*own_command("monitor"), "--control"], plan.environment("monitor"), self._monitor_closed)
        self._note_child("monitor", self.out.pid)

    def _monitor_closed(self) -> str:
        """What to say then; nothing if the run is over, too."""
        if self.over or self.stop.is_set():
            return ""
        with contextlib.suppress(OSError):
            self._note(children={n: pid for n, pid in self.folder.info().children.items() if n != "monitor"})
        return f"the run continues; `oven-controller monitor {self.folder.run}` opens it again; Ctrl-C ends the run"

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
            await end(*waiting)

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

    async def _end(self, processes: Processes, bus: Bus, watch: Watch, code: int) -> None:
        """The learner first, so that its checkpoint and last word still reach the log. `code`: the run's, so far."""
        if self.members is not None:
            await self.members.close()
        if self.stop.is_set():
            await self.out.close()
        if processes.learner is not None and processes.learner.returncode is None:
            self.out("ending the learner in order (once more to kill it)")
        await processes.end_learner()
        try:
            await self.log.append_kept(bus)
        except OvenError as error:
            self.out(str(error))
        await self.log.drain(bus, watch)  # what the learner said last, before the others say goodbye
        if self.settings.notify.to:  # whoever is called hears of it, if the log does not say
            code_of = processes.learner.returncode if processes.learner is not None else None
            self._note(ended=self._status(code), learner_end=how(code_of) if code_of is not None else "")
        await processes.end_others()
        await self.log.drain(bus, watch)

    def summary(self) -> None:
        lines = self._summary()
        for line in lines:
            self.out(line)
        if self.request.announced is not None:
            self.request.announced({"summary": lines})

    def _summary(self) -> list[str]:
        if not self.report.view.seq:
            return ["nothing was logged"]
        where = self.folder.export if self.folder.export.exists() else self.folder.server.folder
        missing = [self.log.missing] if self.log.missing else []
        check = f"log {short(where)}; check it with `oven-controller replay {self.folder.run}`"
        return [*self.report.summary(), *missing, check]

    def _status(self, code: int) -> Status:
        if code != 0:
            return "stopped" if code == 130 else "failed"
        if (ended := self.report.view.ended or self.log.kept_end) is not None:
            return ended.reason
        return "failed" if self.log.missing else "stopped"

    def _on_event(self, event: Event) -> None:
        self.report.event(event)
        self.floods.hear(event)
        if self.members is not None:
            self.members.hear(event)

    def _on_flood(self, agent: str) -> None:
        """An agent floods the log: its key opens nothing any more."""
        self.out(
            f"agent {agent} says more than {message_floods.FREE} messages beyond {message_floods.PER_TICK} a "
            "tick and loses its key"
        )
        leaving = asyncio.create_task(asyncio.to_thread(self._revoke, agent), name=f"let out {agent}")
        self.leaving.add(leaving)
        leaving.add_done_callback(self.leaving.discard)

    def _revoke(self, agent: str) -> None:
        try:
            revoke(self.folder, agent)
        except OvenError as error:
            self.out(f"agent {agent} continues: {error}; `oven-controller mute {agent}` takes its votes out")

    def on_signal(self, number: int) -> None:
        if self.stop.is_set() and self.processes is not None:  # asked twice: no more waiting
            self.processes.kill()
        self.signal = self.signal or number
        self.stop.set()

    def _credentials(self) -> Credentials | None:
        path = self.folder.credentials("admin")
        return Credentials.load(path) if path else None

    def failed(self) -> None:
        """It ended before it could say how."""
        self._note(ended="failed", children={})

    def _note(self, **changes: object) -> bool:
        """Whether run.json says so: a full disk ends no run."""
        try:
            self.folder.write_info(self.folder.info().model_copy(update=changes))
        except OSError as error:
            what = "how the run ended" if "ended" in changes else f"what has changed ({', '.join(changes)})"
            self.out(f"run.json cannot be written ({error.strerror}), and does not say {what}: make room")
            return False
        return True

    def _note_child(self, name: str, pid: int) -> None:
        self._note(children={**self.folder.info().children, name: pid})

    def _write_config(self) -> None:
        self.folder.config.write_text(self.settings.model_dump_json(indent=1) + "\n")
