"""Runs the stack of one run for `up` and `run --`: its server, agents, meshes and learner, until the summary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oven_controller.notify import notifier_state, recipients, saved_addresses
from oven_controller.stack import kg_rules, message_floods
from oven_controller.stack.agent_keys import revoke
from oven_controller.stack.line_output import LinePrinter, start_line
from oven_controller.stack.log_keeper import LogKeeper
from oven_controller.stack.preflight_checks import Request, check_request, exposure_warning
from oven_controller.stack.process_plan import Plan, Pool, export_lines, make_pools, process_command
from oven_controller.stack.process_table import is_installed
from oven_controller.stack.processes import MemberProcesses, Processes, StopRequested
from oven_controller.stack.terminal_output import Screen, relay, report_preparation
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, ConfigError, OvenError, ProcessError
from oven_core.protocol.events import Event
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_runs.access import log_cache
from oven_runs.access.log_watch import LogWatch
from oven_runs.home import relaunch
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.relaunch import LearnerRelaunch
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.home.run_info import Status
from oven_runs.process import foreground_process, signals
from oven_runs.process.child_process import Child, describe_exit, short_path
from oven_runs.server import embedded_server
from oven_runs.settings.agents import agent_names, agent_specs, agents_per_process

CACHE_INTERVAL_S = 10.0
"""Seconds between two checks whether the log needs a new cache."""
UNWATCHED = {
    "": "the script did not connect: call oven_learner.attach(trainer) in it, or use --auto-attach or --tap",
    "OVEN_AUTO_ATTACH": "nothing was attached, because the script used no trainer that --auto-attach knows; try --tap",
    "OVEN_TAP": "nothing was observed, because the script called no logger that --tap knows; try --auto-attach",
}
"""The summary of a script without a run, by the first of the request's hooks."""
ROLES = ("admin", "learner", "mesh", "history", "kg", "operator", "monitor")
"""Roles with one key each. Agents and committee members have one key per name."""


async def run_stack(request: Request, home: Home, out: Callable[[str], None]) -> int:
    """Start the stack, wait until it ends, and return the exit code."""
    check_request(request, home)
    recipe = request.resolved.settings.recipe
    folder = home.find(request.run) if request.resume else home.create(request.run, recipe)
    screen = Screen(out, folder.logs / "up.log")
    stack = _Stack(request, folder, screen)
    with signals.handle_signals(stack.on_signal):
        try:
            with folder.hold():
                try:
                    code = await stack.run()
                except OvenError as error:
                    await screen.close_monitor()
                    if error.exit_code == ConfigError.exit_code and not request.resume:
                        shutil.rmtree(folder.path, ignore_errors=True)  # so that the name stays free
                    else:
                        stack.update_info(ended="failed", children={})
                    raise
            # The stack is down and its lock is free, so other commands need not wait for the open monitor.
            await stack.wait_for_monitor()
        finally:
            await screen.close_monitor()
    stack.print_summary()
    return code


class _Stack:
    """A running stack, with its server, processes, log and output."""

    def __init__(self, request: Request, folder: RunFolder, screen: Screen) -> None:
        self.request = request
        self.settings = request.resolved.settings
        self.folder = folder
        self.screen = self.out = screen  # as a function, it prints a line
        self.stop = asyncio.Event()
        self.signal_number = 0  # the first signal
        self.script_offset = 0  # where the current process's output begins in script.log
        self.earlier_preparation = ""  # of the learner before the current one
        self.script_code = 0
        self.has_ended = False
        self.processes: Processes | None = None
        self.member_processes: MemberProcesses | None = None
        self.server: embedded_server.EmbeddedServer | None = None
        self.printer = LinePrinter(screen, folder.run, datetime.now(UTC), agent_names(self.settings))
        self.log_keeper = LogKeeper(folder, self.printer, screen)
        self.flood_detector = message_floods.FloodDetector(self._on_flood)
        self.revocations: set[asyncio.Task[None]] = set()  # references, so that the tasks are not garbage-collected

    async def run(self) -> int:
        self.out(start_line(self.request.resolved))
        self._prepare()
        try:
            url = await self._start_server()
            self.out(f"run {self.folder.run}, bus {url}, folder {short_path(self.folder.path)}")
            if self.folder.keys_file() is None:
                self.out("events are not signed, because signing needs a key for each role (see `creds server`)")
            trust = tls.trust_file(self.settings.tls_ca) if self.settings.tls_ca else None
            if self.settings.nats and (warning := await exposure_warning(url, self.settings.tls_ca, trust)):
                self.out(f"warning: {warning}")
            key_path = self.folder.credentials("admin")
            key = Credentials.load(key_path) if key_path else None
            async with Bus.connect(url, key, name="admin", trust=trust) as bus:
                kg_folder = self.settings.kg if isinstance(self.settings.kg, str) else ""
                plan = Plan(self.folder, url, self.settings.otlp, self.settings.agents_memory_mb, kg_folder)
                return await self._run_processes(bus, plan)
        finally:
            if self.processes is not None:
                await self.processes.end_server()
            elif self.server is not None:
                await self.server.stop()
            self.has_ended = True

    async def wait_for_monitor(self) -> None:
        """Wait until the user quits the monitor, or for a signal."""
        stop_task = asyncio.create_task(self.stop.wait())
        close_task = asyncio.create_task(self.screen.wait_for_monitor())
        await asyncio.wait({stop_task, close_task}, return_when=asyncio.FIRST_COMPLETED)
        await end(stop_task)
        await self.screen.close_monitor()
        await close_task

    def _prepare(self) -> None:
        """Write the run's settings and run.json. Raises ProcessError if the disk is full or read-only."""
        start = self.request.resolved.start
        try:
            self._save_recipients()
            self._write_config()
        except OSError as error:
            raise ProcessError(
                f"cannot write {self.folder.config} ({error.strerror}); free some disk space, or change OVEN_HOME"
            ) from error
        self.update_info(
            mirrored=True,  # log.jsonl is incomplete until the run ends
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

    def _save_recipients(self) -> None:
        """Move the recipients' addresses from the settings to the run's folder. In a new run, notify of all events."""
        settings = saved_addresses.save(self.folder.path, self.settings.notify)
        self.settings = self.settings.model_copy(update={"notify": settings})
        if settings.to and not self.request.resume:
            notifier_state.save(self.folder.path, notifier_state.NotifierState())
        resolved = recipients.resolve_recipients(settings, os.environ, self.folder.path)
        if resolved:
            self.out(f"sending messages to {', '.join(recipient.name for recipient in resolved)}")
        for warning in recipients.tls_warnings(resolved):
            self.out(f"warning: {warning}")

    async def _start_server(self) -> str:
        """Start the embedded server with its keys, unless the user has another server. Return the server's address."""
        if self.settings.nats:
            self.update_info(url=self.settings.nats)
            return self.settings.nats
        for role in ROLES:
            self.folder.add_user(role, role)  # type: ignore[arg-type]
        for pool in self._make_pools():
            self.folder.add_user("agent", pool.key, pool.names)
        for member in self.settings.committee.judges:
            self.folder.add_user("member", member)
        log = self.folder.logs / "nats-server.log"
        self.server = await embedded_server.EmbeddedServer.start(self.folder.server, log, self.settings.port)
        self.update_info(url=self.server.url, port=self.server.port)
        return self.server.url

    async def _run_processes(self, bus: Bus, plan: Plan) -> int:
        """Run the processes until they end, and return the exit code."""
        is_new = await self._create_stream(bus)
        await self._create_completions_stream(bus)
        keyring = Keyring(self.folder.pin())
        async with contextlib.AsyncExitStack() as resources:
            await self.log_keeper.append_saved(bus)
            head = await bus.head(self.folder.run)
            mirror = resources.enter_context(contextlib.closing(Mirror(self.folder.export)))
            watch = await resources.enter_async_context(
                LogWatch(bus, self.folder.run, keyring, head, self.printer.count, self._on_event, mirror.add)
            )
            flushing = self.log_keeper.flush_regularly(mirror, embedded=self.server is not None)
            flush_task = asyncio.create_task(flushing, name="flush-log")
            resources.callback(flush_task.cancel)
            saving = log_cache.save_regularly(self.folder, CACHE_INTERVAL_S)
            resources.push_async_callback(end, asyncio.create_task(saving, name="save-log-cache"))
            processes = Processes(plan, bus, watch, self.stop, self.out, self._record_pid)
            self.processes = processes
            self.member_processes = MemberProcesses(processes, self.out)
            if self.server is not None:
                self._record_pid("nats-server", self.server.child.pid)
                processes.supervise_server(self.server)
            try:
                resume_command = self.folder.resume_command(shlex.join(self.request.command))
                relaunches = LearnerRelaunch(self.folder.path, resume_command, self.out)
                await self._start_processes(processes, bus, plan)
                await self._wait_for_learner(processes.learner)
                while not self.stop.is_set() and (checkpoint := relaunches.next_checkpoint()) is not None:
                    await self._start_learner(processes, plan, resume_from=checkpoint)
                    await self._wait_for_learner(processes.learner)
                code = self._learner_exit_code(processes.learner)
            except StopRequested:
                code = self._stop_exit_code()
            except OvenError as error:
                await self._end_processes(processes, bus, watch, OvenError.exit_code)
                if error.exit_code == ConfigError.exit_code and is_new:
                    await streams.delete(bus.jetstream, self.folder.run)
                raise
            await self._end_processes(processes, bus, watch, code)
            await self.log_keeper.finish(bus, watch, mirror)
        learner = processes.learner if not self.request.command else None
        recipe_succeeded = code == 0 and learner is not None and learner.returncode == 0
        self.log_keeper.update_gap_report(expects_end=recipe_succeeded)
        was_recorded = self.update_info(ended=self._final_status(code), children={})
        is_incomplete = bool(self.log_keeper.gap_report) or not was_recorded
        return OvenError.exit_code if code == 0 and is_incomplete else code

    async def _create_stream(self, bus: Bus) -> bool:
        """Create the stream of the log unless a resumed run has one. Return whether the stream is new."""
        if self.request.resume:
            if await streams.exists(bus.jetstream, self.folder.run):
                return False
            if self.folder.export.exists() and self.folder.export.stat().st_size:
                raise ConfigError(
                    f"run {self.folder.run!r} cannot be resumed, because its store is gone and only "
                    f"{self.folder.export} is left of its log; start a new run"
                )
        await streams.create(bus.jetstream, self.folder.run, self.settings.stream_replicas)
        return True

    async def _create_completions_stream(self, bus: Bus) -> None:
        """Create the stream of sampled completions. The run works without it."""
        if self.settings.completions_every:
            replicas = self.settings.stream_replicas
            if refusal := await streams.create_completions(bus.jetstream, self.folder.run, replicas):
                self.out(f"no sampled completions are stored, because the server refused their stream: {refusal}")

    async def _start_processes(self, processes: Processes, bus: Bus, plan: Plan) -> None:
        resume_from = relaunch.LATEST if self.request.resume else ""
        starts_recipe = self.request.starts_learner and not self.request.command
        if starts_recipe:  # before the others, because it imports for seconds
            await self._start_learner(processes, plan, resume_from, waits=True)
        await processes.start_meshes(self.settings.meshes)
        if self.settings.kg:
            await self._add_graph_rules(processes, bus)
        await processes.start_agents(self._make_pools())
        await processes.start_members(list(self.settings.committee.judges))
        if self.settings.committee.frontier.model:
            await processes.start_probes()
        if self.settings.notify.to:
            await processes.start_notifier()
        for target in self.settings.export:
            await processes.start_exporter(target)
        if self.settings.metrics_port is not None or self.settings.otlp:
            await processes.start_metrics()
        await self._open_monitor(plan)
        if starts_recipe:
            assert processes.learner is not None
            self._release_learner(processes.learner)
            return
        if self.request.command:
            await self._start_learner(processes, plan, resume_from)
            return
        environment = plan.attached_learner(resumed=self.request.resume)
        if self.request.on_ready is not None:
            fields = {"run": self.folder.run, "url": plan.url, "folder": str(self.folder.path.absolute())}
            self.request.on_ready(fields | {"environment": environment})
        else:
            self.out("waiting for a learner; run this in its shell:")
            for line in export_lines(environment):
                self.out(f"  {line}")

    async def _start_learner(self, processes: Processes, plan: Plan, resume_from: str, *, waits: bool = False) -> None:
        """Start the user's script or the recipe. If the recipe `waits`, it only imports until it is released."""
        if self.request.command:
            script = plan.script(self.request.command, resume_from, self.request.hooks)
            self.script_offset = script.log.stat().st_size if script.log.exists() else 0
            await processes.start_learner(script)
        else:
            self.earlier_preparation = self.folder.preparation()
            learner = await processes.start_learner(plan.learner(resume_from))
            if not waits:
                self._release_learner(learner)

    def _release_learner(self, learner: Child) -> None:
        learner.release()
        self.out(f"starting the learner; its output goes to {short_path(learner.log)}")

    def _make_pools(self) -> list[Pool]:
        return make_pools(agent_specs(self.settings), agents_per_process(self.settings))

    async def _add_graph_rules(self, processes: Processes, bus: Bus) -> None:
        """Add the prior service's rules to the run's rules before the learner starts. The run works without them."""
        if not is_installed("kg"):
            self.out('the prior service is not installed (`pip install "oven-controller[kg]"`): agents have no priors')
            return
        if not await processes.start_kg():
            return
        try:
            info = await kg_rules.request_graph_info(bus)
        except BusError as error:
            self.out(f"no rules were added from kg: {error}")
            return
        own_rules = self.settings.rules
        rules = kg_rules.with_graph_rules(own_rules, info)
        contradictions = len(rules.contradictions) - len(own_rules.contradictions)
        requirements = len(rules.requires) - len(own_rules.requires)
        self.settings = self.settings.model_copy(update={"rules": rules})
        self._write_config()
        counts = f"+{contradictions} contradictions, +{requirements} requirements"
        self.out(f"rules from kg (graph {info.graph[:12]}): {counts}")

    async def _open_monitor(self, plan: Plan) -> None:
        if not self.request.opens_monitor or not foreground_process.has_terminal():
            return
        if not is_installed("monitor"):
            self.out('printing lines, because the monitor is not installed (`pip install "oven-controller[tui]"`)')
            return
        command = [*process_command("monitor"), "--control"]
        await self.screen.open_monitor(command, plan.environment("monitor"), self._on_monitor_closed)
        self._record_pid("monitor", self.screen.monitor_pid)

    def _on_monitor_closed(self) -> str:
        """Return the line to print when the monitor is closed, or an empty string if the run has also ended."""
        if self.has_ended or self.stop.is_set():
            return ""
        with contextlib.suppress(OSError):
            children = self.folder.info().children
            self.update_info(children={name: pid for name, pid in children.items() if name != "monitor"})
        return f"the run continues; `oven-controller monitor {self.folder.run}` reopens it; Ctrl-C ends the run"

    async def _wait_for_learner(self, learner: Child | None) -> None:
        """Wait until the learner ends or a signal arrives."""
        stop_task = asyncio.create_task(self.stop.wait())
        script_ended = asyncio.Event()
        tasks: set[asyncio.Task[object]] = {stop_task}
        copy_task = None
        preparation_tasks: set[asyncio.Task[object]] = set()
        if learner is not None:
            tasks.add(asyncio.create_task(learner.wait()))
            if self.request.command and not self.request.quiet:
                copy_task = asyncio.create_task(relay(learner.log, self.script_offset, script_ended))
            if not self.request.command:
                reporting = report_preparation(
                    self.folder, self.out, lambda: self.printer.view.started, self.earlier_preparation
                )
                preparation_tasks = {asyncio.create_task(reporting)}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            script_ended.set()
            if copy_task is not None:
                await copy_task
            await end(*tasks, *preparation_tasks)

    def _stop_exit_code(self) -> int:
        """Return the exit code after a signal: 130 for Ctrl-C, as in a shell, and 0 for other signals."""
        return 130 if self.signal_number == signal.SIGINT else 0

    def _learner_exit_code(self, child: Child | None) -> int:
        """Return the exit code of a learner that ended by itself, or else the code for the signal.

        Raises ConfigError if the learner could not start because of its settings or a missing package."""
        if child is None or child.returncode is None:
            return self._stop_exit_code()
        code = child.returncode
        if self.request.command or code == 0:
            self.script_code = code
            return code
        last_line = child.tail(lines=1)
        if code == ConfigError.exit_code and last_line.startswith("error: ") and self.printer.view.started is None:
            raise ConfigError(last_line.removeprefix("error: "))
        self.out(f"the learner failed ({describe_exit(code)}); the end of {short_path(child.log)}:")
        for line in child.tail().splitlines():
            self.out(f"  {line}")
        return code if code == ConfigError.exit_code else OvenError.exit_code

    async def _end_processes(self, processes: Processes, bus: Bus, watch: LogWatch, code: int) -> None:
        """End the processes. The learner ends first, so that its checkpoint and last messages still reach the log.
        `code` is the exit code so far."""
        if self.member_processes is not None:
            await self.member_processes.close()
        if self.stop.is_set():
            await self.screen.close_monitor()
        if processes.learner is not None and processes.learner.returncode is None:
            self.out("stopping the learner (a second signal kills it)")
        await processes.end_learner()
        try:
            await self.log_keeper.append_saved(bus)
        except OvenError as error:
            self.out(str(error))
        await self.log_keeper.drain(bus, watch)  # log the learner's last messages before the agents leave
        if self.settings.notify.to:  # the notifier reads the end from run.json if it is not in the log
            learner_code = processes.learner.returncode if processes.learner is not None else None
            learner_end = describe_exit(learner_code) if learner_code is not None else ""
            self.update_info(ended=self._final_status(code), learner_end=learner_end)
        await processes.end_others()
        await self.log_keeper.drain(bus, watch)

    def print_summary(self) -> None:
        lines = self._summary_lines()
        for line in lines:
            self.out(line)
        if self.request.on_ready is not None:
            self.request.on_ready({"summary": lines})

    def _summary_lines(self) -> list[str]:
        if not self.printer.view.seq:
            return ["nothing was logged"]
        exit_lines = [f"the script failed ({describe_exit(self.script_code)})"] if self.script_code else []
        if self.request.command and self.printer.view.started is None:
            return [*exit_lines, UNWATCHED[next(iter(self.request.hooks), "")]]
        log = self.folder.export if self.folder.export.exists() else self.folder.server.folder
        gap_report = [self.log_keeper.gap_report] if self.log_keeper.gap_report else []
        log_line = f"log {short_path(log)}; check it with `oven-controller replay {self.folder.run}`"
        return [*exit_lines, *self.printer.summary(), *gap_report, log_line]

    def _final_status(self, code: int) -> Status:
        if code != 0:
            return "stopped" if code == 130 else "failed"
        if (ended := self.printer.view.ended or self.log_keeper.saved_end) is not None:
            return ended.reason
        return "failed" if self.log_keeper.gap_report else "stopped"

    def _on_event(self, event: Event) -> None:
        self.printer.on_event(event)
        self.flood_detector.on_event(event)
        if self.member_processes is not None:
            self.member_processes.on_event(event)

    def _on_flood(self, agent: str) -> None:
        """Revoke the key of an agent that floods the log."""
        self.out(
            f"agent {agent} exceeded {message_floods.MESSAGES_PER_TICK} messages per tick by more than "
            f"{message_floods.MAX_EXCESS} messages, so its key is revoked"
        )
        task = asyncio.create_task(asyncio.to_thread(self._revoke, agent), name=f"revoke {agent}")
        self.revocations.add(task)
        task.add_done_callback(self.revocations.discard)

    def _revoke(self, agent: str) -> None:
        try:
            revoke(self.folder, agent)
        except OvenError as error:
            self.out(f"could not revoke the key of {agent}: {error}; `oven-controller mute {agent}` ignores its votes")

    def on_signal(self, number: int) -> None:
        if self.stop.is_set() and self.processes is not None:  # the second signal
            self.processes.kill()
        self.signal_number = self.signal_number or number
        self.stop.set()

    def update_info(self, **changes: Any) -> bool:
        """Change run.json, and return whether that worked. A full disk must not end the run."""
        try:
            self.folder.write_info(replace(self.folder.info(), **changes))
        except OSError as error:
            fields = "the run's end" if "ended" in changes else ", ".join(changes)
            self.out(f"cannot write {fields} to run.json ({error.strerror}); free some disk space")
            return False
        return True

    def _record_pid(self, name: str, pid: int) -> None:
        self.update_info(children={**self.folder.info().children, name: pid})

    def _write_config(self) -> None:
        self.folder.config.write_text(self.settings.model_dump_json(indent=1) + "\n")
