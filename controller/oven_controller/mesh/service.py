"""A mesh replica's process: the pure core with a log on one side and a publisher on the other.

It replays the log to its head, publishes what is still pending, and from then on publishes what each event yields.
Any number may run: every output goes to a subject of its own that takes one message ever, so only one copy enters.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

from oven_controller import telemetry
from oven_controller.bus import AlreadyLoggedError, Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError, DivergedError
from oven_controller.events import Event
from oven_controller.history import serve_history
from oven_controller.mesh.core import Mesh, Output
from oven_controller.mesh.identity import code_hash
from oven_controller.messages import BallotOpened, Decision, Message, RunStarted

log = logging.getLogger("oven.mesh")

RETRY_S = 0.25


def main(args: list[str]) -> int:
    """Entry point of the mesh's process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    telemetry.start("mesh", os.environ["OVEN_RUN"])
    try:
        asyncio.run(_until_told(os.environ["OVEN_URL"], os.environ["OVEN_RUN"]))
    finally:
        telemetry.shutdown()
    return 0


async def _until_told(url: str, run: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        Bus.connect(url, _credentials("OVEN_CREDS"), name="mesh") as bus,
        Bus.connect(url, _credentials("OVEN_HISTORY_CREDS"), name="history") as service_bus,
    ):
        await serve_history(service_bus, run)
        serving = asyncio.create_task(serve(bus, run))
        tasks = {serving, asyncio.create_task(stop.wait()), asyncio.create_task(service_bus.closed.wait())}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        for task in tasks:
            task.cancel()
        if service_bus.closed.is_set():
            raise BusError(f"the connection of `history` was closed for good: {service_bus.errors[-1:]}")


def _credentials(variable: str) -> Credentials | None:
    path = os.environ.get(variable)
    return Credentials.load(Path(path)) if path else None


async def serve(bus: Bus, run: str) -> None:
    """Follow the log for ever. Raises DivergedError when the log contradicts this replica."""
    mesh, traces = Mesh(run), _Traces()
    head = await bus.head(run)
    caught_up = head == 0
    allowed = True
    async for event in bus.read(run):
        outputs = mesh.step(event)
        traces.note(event, outputs)
        if mesh.divergence:
            log.error("%s", mesh.divergence)
            raise DivergedError(mesh.divergence)
        if isinstance(event.body, RunStarted):
            allowed = _same_code(event.body)
        if not caught_up:
            if event.seq < head:
                continue
            caught_up = True
            outputs = list(mesh.pending.values())
            log.info("replayed %d events; %d outputs pending", event.seq, len(outputs))
        if allowed:
            for output in outputs:
                await _publish(bus, output, traces)


def _same_code(started: RunStarted) -> bool:
    if started.mesh_code and started.mesh_code != code_hash():
        log.error(
            "this replica's code (%s) is not what the run was started with (%s); it reads and publishes nothing. "
            "Run the version that RunStarted names: %s",
            code_hash()[:12],
            started.mesh_code[:12],
            started.versions,
        )
        return False
    return True


async def _publish(bus: Bus, output: Output, traces: _Traces) -> None:
    """Into the log, once, however often the bus fails. Another replica's copy is as good as ours; if its bytes differ,
    the core sees that when it reads them back."""
    span, tried = traces.span(output.message), False
    context = span.traceparent or traces.context(output.message)
    while True:
        try:
            await bus.append(output.subject, output.message.wire(), once=True, traceparent=context)
            span.end()
            return
        except AlreadyLoggedError:
            if tried:  # by us, maybe; a replica that came second decided nothing and has no span
                span.end()
            return
        except BusError as error:
            tried = True
            log.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_S)


class _Traces:
    """The mesh's part in the traces, beside the core, which knows nothing of them: a ballot goes on with the context of
    the vote that opened it, and its tally is a span from there to the decision."""

    def __init__(self) -> None:
        self._contexts = telemetry.Contexts()

    def note(self, event: Event, outputs: list[Output]) -> None:
        """What `event` caused belongs to its trace; while the log is replayed, too."""
        for output in outputs if event.traceparent else ():
            if isinstance(output.message, BallotOpened | Decision):
                self._contexts.keep(output.message.id, event.traceparent)

    def context(self, message: Message) -> str:
        if isinstance(message, BallotOpened):
            return self._contexts.get(message.id)
        # Without a ballot it is the refusal of a vote, and goes on from that.
        return self._contexts.get(message.ballot or message.id) if isinstance(message, Decision) else ""

    def span(self, message: Message) -> telemetry.Span:
        """The tally behind a decision."""
        if not isinstance(message, Decision):
            return telemetry.OFF
        attributes: dict[str, telemetry.Attribute] = {
            "oven.tick": message.tick,
            "oven.actuator": message.actuator,
            "oven.ballot_id": message.ballot,
            "oven.decision_id": message.id,
            "oven.verdict": message.verdict,
        }
        opened_ns = self._contexts.since_ns(message.ballot)
        return telemetry.span("tally", self.context(message), attributes, kind="consumer", began_ns=opened_ns)
