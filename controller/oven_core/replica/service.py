"""The process of a mesh replica: it reads the log, computes decisions and publishes them.

It replays the log to its head, publishes pending outputs, and then publishes the outputs of each event. Any number of
replicas may run. Every output has its own subject, which accepts one message from the mesh, so only one copy enters the
log. A forgery on such a subject neither counts nor blocks. All replicas know its sequence from the log, and
publish on the condition that the subject has nothing newer.

The process also answers requests for past events and stored completions, for clients without rights on the streams' own
API. Replies go to inboxes only. Otherwise a request with a protected subject as its reply subject would make the
process write there on a stranger's behalf.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from pydantic import ValidationError

from oven_core.bus.connection import PATIENT_S, Bus
from oven_core.bus.log import AlreadyLoggedError
from oven_core.bus.stored_completions import stored_batch
from oven_core.cancellation import call_at_end, end
from oven_core.errors import BusError, DivergedError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.outputs import OUTPUTS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.codec import Malformed
from oven_core.protocol.completion_messages import CompletionsRequest
from oven_core.protocol.events import Event
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest, LoggedEvent
from oven_core.protocol.messages import BallotOpened, Decision, Message, RunStarted
from oven_core.protocol.names import Subjects, kind
from oven_core.security.credentials import Credentials
from oven_core.security.signing import MESH, Keyring
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span

log = logging.getLogger("oven.mesh")

RETRY_S = 0.25
REPLY_BYTES = 512 * 1024
"""Maximum bytes of a reply: half of the server's payload limit. Larger batches end early."""
WAITING = 64
"""Maximum waiting requests. The service drops further ones, and their senders retry."""


def main(args: list[str]) -> int:
    """Entry point of the mesh's process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    replica = os.environ.get("OVEN_REPLICA", "mesh")
    tracing.start(replica, os.environ["OVEN_RUN"])
    try:
        asyncio.run(_run_until_signal(os.environ["OVEN_URL"], os.environ["OVEN_RUN"], replica))
    finally:
        tracing.shutdown()
    return 0


async def _run_until_signal(url: str, run: str, replica: str) -> None:
    stop = asyncio.Event()
    call_at_end(stop.set)
    async with (
        Bus.connect(url, Credentials.from_environment(), name=replica, timeout_s=PATIENT_S) as bus,
        Bus.connect(
            url, Credentials.from_environment("OVEN_HISTORY_CREDS"), name="history", timeout_s=PATIENT_S
        ) as service_bus,
    ):
        await serve_history(service_bus, run, replica)
        await serve_completions(service_bus, run)
        serving = asyncio.create_task(serve(bus, run, os.environ.get("OVEN_LEARNER_KEY")))
        tasks = {serving, asyncio.create_task(stop.wait()), asyncio.create_task(service_bus.closed.wait())}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        await end(*tasks)
        if service_bus.closed.is_set():
            raise BusError(f"the connection of `history` was closed for good: {service_bus.errors[-1:]}")


async def serve(bus: Bus, run: str, pin: str | None = None) -> None:
    """Follow the log forever, and publish at the same time: the next vote is read while the log confirms a ballot.
    `pin` is the learner's public key, if known. Raises DivergedError if the log contradicts this replica."""
    replica = _Replica(bus, run, pin)
    tasks = {asyncio.create_task(replica.follow()), asyncio.create_task(replica.publish())}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end(*tasks)


class _Replica:
    """A mesh and its pending outputs, connected to the log."""

    def __init__(self, bus: Bus, run: str, pin: str | None) -> None:
        self._bus, self._run = bus, run
        self._mesh, self._traces, self._keyring = Mesh(run), _Traces(), Keyring(pin)
        self._outbox: asyncio.Queue[Output] = asyncio.Queue()
        self._forged: dict[str, int] = {}  # the mesh's subjects with forged messages → the last one's sequence

    async def follow(self) -> None:
        mesh = self._mesh
        head = await self._bus.head(self._run)
        caught_up = head == 0
        if caught_up:
            log.info("replayed 0 events; the log is empty so far")
        allowed = True
        async for logged in self._bus.read(self._run):
            event = self._keyring.verify(logged)
            outputs = mesh.step(event)
            self._traces.note(event, outputs)
            if isinstance(event.body, Malformed) and kind(event.subject) in OUTPUTS:
                log.error("event %d on %s is ignored: %s", event.seq, event.subject, event.body.reason)
                self._forged[event.subject] = event.seq
                if event.subject in mesh.pending:  # the forgery came first, and the log refused the real output
                    outputs = [mesh.pending[event.subject]]
            if mesh.divergence:
                log.error("%s", mesh.divergence)
                raise DivergedError(mesh.divergence)
            if isinstance(event.body, RunStarted):
                allowed = _same_code(event.body) and _has_mesh_key(self._bus, event.body)
            if not caught_up:
                if event.seq < head:
                    continue
                caught_up = True
                outputs = list(mesh.pending.values())
                log.info("replayed %d events; %d outputs pending", event.seq, len(outputs))
            if allowed:
                for output in outputs:
                    self._outbox.put_nowait(output)

    async def publish(self) -> None:
        """Publish outputs in order without waiting for confirmations, so that a decision does not wait for its ballot.
        A retried output arrives later, because nothing depends on the order of outputs."""
        async with asyncio.TaskGroup() as under_way:
            while True:
                output = await self._outbox.get()
                if self._mesh.pending.get(output.subject) is output:  # else another replica's copy is in the log
                    over = self._forged.get(output.subject, 0)
                    under_way.create_task(_publish(self._bus, output, self._traces, over))


def _same_code(started: RunStarted) -> bool:
    if started.mesh_code and started.mesh_code != mesh_code_hash():
        log.error(
            "this replica's code (%s) is not what the run was started with (%s); it reads and publishes nothing. "
            "Run the version that RunStarted names: %s",
            mesh_code_hash()[:12],
            started.mesh_code[:12],
            started.versions,
        )
        return False
    return True


def _has_mesh_key(bus: Bus, started: RunStarted) -> bool:
    """Whether this replica's signature is valid for the run. Otherwise it would publish again and again."""
    if started.keys and (bus.signer is None or started.keys.get(MESH) != bus.signer.public):
        log.error(
            "this replica's key is not the mesh's key of the run; it reads and publishes nothing. Give it the mesh.nk "
            "next to the keys.json that the learner announced"
        )
        return False
    return True


async def _publish(bus: Bus, output: Output, traces: _Traces, over: int) -> None:
    """Append the output to the log once, however often the bus fails, after sequence `over` on its subject. Another
    replica's copy is as good; if its bytes differ, the core notices when it reads them back."""
    span, retried = traces.span(output.message), False
    context = span.traceparent or traces.context(output.message)
    while True:
        try:
            await bus.append(output.subject, output.data, once=True, over=over, traceparent=context)
            span.end()
            return
        except AlreadyLoggedError:
            if retried:  # the copy may be ours; a replica that came second decided nothing and has no span
                span.end()
            return
        except BusError as error:
            retried = True
            log.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_S)


class _Traces:
    """The mesh's spans, recorded outside the core. A ballot inherits the trace context of the vote that opened it, and
    its tally is a span from there to the decision."""

    def __init__(self) -> None:
        self._contexts = tracing.Contexts()

    def note(self, event: Event, outputs: list[Output]) -> None:
        """Add the event's effects to its trace, also during a replay of the log."""
        for output in outputs if event.traceparent else ():
            if isinstance(output.message, BallotOpened | Decision):
                self._contexts.add(output.message.id, event.traceparent)

    def context(self, message: Message) -> str:
        if isinstance(message, BallotOpened):
            return self._contexts.get(message.id)
        # A decision without a ballot refuses a vote, and continues the vote's trace.
        return self._contexts.get(message.ballot or message.id) if isinstance(message, Decision) else ""

    def span(self, message: Message) -> Span:
        """Open a span for the tally of a decision."""
        if not isinstance(message, Decision):
            return tracing.OFF
        attributes: dict[str, Attribute] = {
            "oven.tick": message.tick,
            "oven.actuator": message.actuator,
            "oven.ballot_id": message.ballot,
            "oven.decision_id": message.id,
            "oven.verdict": message.verdict,
        }
        opened_ns = self._contexts.since_ns(message.ballot)
        return tracing.span("tally", self.context(message), attributes, kind="consumer", began_ns=opened_ns)


async def serve_history(bus: Bus, run: str, replica: str = "mesh") -> None:
    """Answer requests for past events until the connection closes, one replica each, or this one by name."""

    async def read(data: bytes) -> HistoryBatch:
        request = HistoryRequest.model_validate_json(data)
        head, size, events = await bus.head(run), 0, list[LoggedEvent]()
        if request.after < head:
            async for event in bus.read(run, after=request.after, until=min(head, request.after + request.limit)):
                entry = event.logged()
                size += len(entry.model_dump_json())
                if events and size > REPLY_BYTES:
                    break
                events.append(entry)
        return HistoryBatch(events=tuple(events), head=head)

    subjects = Subjects(run)
    await bus.subscribe(subjects.history, _answering(bus, read), queue="history", waiting=WAITING)
    await bus.subscribe(subjects.history_of(replica), _answering(bus, read), waiting=WAITING)
    await bus.flush()


async def serve_completions(bus: Bus, run: str) -> None:
    """Answer requests for stored completions until the connection closes. One replica answers each request."""

    async def read(data: bytes) -> Message:
        request = CompletionsRequest.model_validate_json(data)
        return await stored_batch(bus, run, request.after, request.limit)

    await bus.subscribe(Subjects(run).stored_completions, _answering(bus, read), queue="history", waiting=WAITING)
    await bus.flush()


def _answering(bus: Bus, read: Callable[[bytes], Awaitable[Message]]) -> Callable[[Msg], Awaitable[None]]:
    """Return a handler that answers a request with the result of `read` for its body. It never logs a body."""

    async def answer(message: Msg) -> None:
        if not message.reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", message.subject, message.reply)
            return
        try:
            batch = await read(message.data)
        except (ValidationError, BusError) as error:
            faults = f"{error.error_count()} faults" if isinstance(error, ValidationError) else str(error)
            log.warning("a request on %s was not answered: %s", message.subject, faults)
            return
        await bus.publish(message.reply, batch.wire())

    return answer
