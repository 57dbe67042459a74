"""The process of a mesh replica, which reads the log, computes decisions and publishes them.

It replays the whole log, publishes pending outputs, and then publishes the outputs of each new event. Any number of
replicas may run. Every output has its own subject, which accepts one message from the mesh, so only one copy enters the
log. A forged message on such a subject does not count, and does not block the real one either. All replicas know the
forgery's sequence number from the log, and publish on the condition that the subject has no newer message.

The process also answers requests for past events and stored completions, for clients without access to the streams. It
replies only to inboxes. Otherwise a client could name a protected subject as the reply subject and make the process
write there.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from oven_core.bus import Msg
from oven_core.bus.connection import PATIENT_CONNECT_TIMEOUT_S, Bus
from oven_core.bus.log_client import AlreadyLoggedError
from oven_core.bus.stored_completions import read_batch
from oven_core.cancellation import end, on_termination
from oven_core.errors import BusError, DivergedError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.outputs import OUTPUT_KINDS, Output
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
MAX_PENDING_REQUESTS = 64
"""Maximum number of pending requests. The service drops further requests, and their senders retry."""


def main(args: list[str]) -> int:
    """Run a mesh replica as configured by environment variables, and return the exit code."""
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
    on_termination(stop.set)
    async with (
        Bus.connect(url, Credentials.from_environment(), name=replica, timeout_s=PATIENT_CONNECT_TIMEOUT_S) as bus,
        Bus.connect(
            url, Credentials.from_environment("OVEN_HISTORY_CREDS"), name="history", timeout_s=PATIENT_CONNECT_TIMEOUT_S
        ) as service_bus,
    ):
        await serve_history(service_bus, run, replica)
        await serve_completions(service_bus, run)
        serve_task = asyncio.create_task(serve(bus, run, os.environ.get("OVEN_LEARNER_KEY")))
        tasks = {serve_task, asyncio.create_task(stop.wait()), asyncio.create_task(service_bus.closed.wait())}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if serve_task.done():
            serve_task.result()
        await end(*tasks)
        if service_bus.closed.is_set():
            raise BusError(f"the history service lost its connection for good: {service_bus.errors[-1:]}")


async def serve(bus: Bus, run: str, pin: str | None = None) -> None:
    """Follow the log and publish outputs forever.

    `pin` is the learner's public key, if known. Raises DivergedError if the log contradicts this replica."""
    replica = _Replica(bus, run, pin)
    try:
        async with asyncio.TaskGroup() as publishing:
            await replica.follow(publishing)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class _Replica:
    """A mesh and its pending outputs, connected to the log."""

    def __init__(self, bus: Bus, run: str, pin: str | None) -> None:
        self._bus, self._run = bus, run
        self._mesh, self._traces, self._keyring = Mesh(run), _Traces(), Keyring(pin)
        self._forged: dict[str, int] = {}  # subject → sequence number of its last forged message

    async def follow(self, publishing: asyncio.TaskGroup) -> None:
        """Read the log into the mesh forever, and publish the outputs. This does not wait for confirmations, so that
        votes are read while a ballot is confirmed.

        A retried output may arrive after later ones. That is safe, because nothing depends on the order of outputs."""
        mesh = self._mesh
        head = await self._bus.head(self._run)
        caught_up = head == 0
        if caught_up:
            log.info("replayed 0 events; the log is still empty")
        may_publish = True
        async for logged_event in self._bus.read(self._run):
            event = self._keyring.verify(logged_event)
            outputs = mesh.step(event)
            self._traces.add_event(event, outputs)
            if isinstance(event.body, Malformed) and kind(event.subject) in OUTPUT_KINDS:
                log.error("event %d on %s is ignored: %s", event.seq, event.subject, event.body.reason)
                self._forged[event.subject] = event.seq
                if event.subject in mesh.pending:  # the forgery came first, so publish the real output again
                    outputs = [mesh.pending[event.subject]]
            if mesh.divergence:
                log.error("%s", mesh.divergence)
                raise DivergedError(mesh.divergence)
            if isinstance(event.body, RunStarted):
                may_publish = _has_same_code(event.body) and _has_mesh_key(self._bus, event.body)
            if not caught_up:
                if event.seq < head:
                    continue
                caught_up = True
                outputs = list(mesh.pending.values())
                log.info("replayed %d events; %d outputs pending", event.seq, len(outputs))
            if may_publish:
                for output in outputs:
                    publishing.create_task(self._publish(output))

    async def _publish(self, output: Output) -> None:
        """Append the output to the log once, with retries, unless the log has it already.

        If another replica's copy has other bytes, the mesh notices when it reads them back."""
        if self._mesh.pending.get(output.subject) is not output:  # another replica's copy is in the log
            return
        after_sequence = self._forged.get(output.subject, 0)
        span, may_be_logged = self._traces.open_span(output.message), False
        context = span.traceparent or self._traces.context_of(output.message)
        while True:
            try:
                await self._bus.append(
                    output.subject, output.data, once=True, after_sequence=after_sequence, traceparent=context
                )
                span.end()
                return
            except AlreadyLoggedError:
                if may_be_logged:  # otherwise the copy is from another replica, and this span is not sent
                    span.end()
                return
            except BusError as error:
                may_be_logged = True
                log.warning("%s; retrying", error)
                await asyncio.sleep(RETRY_S)


def _has_same_code(run_started: RunStarted) -> bool:
    if run_started.mesh_code and run_started.mesh_code != mesh_code_hash():
        log.error(
            "this replica's code (%s) differs from the code that started the run (%s), so it publishes nothing; "
            "install the versions in RunStarted: %s",
            mesh_code_hash()[:12],
            run_started.mesh_code[:12],
            run_started.versions,
        )
        return False
    return True


def _has_mesh_key(bus: Bus, run_started: RunStarted) -> bool:
    """Return whether this replica signs with the run's key for the mesh. With another key, it would retry forever."""
    if run_started.keys and (bus.signer is None or run_started.keys.get(MESH) != bus.signer.public):
        log.error(
            "this replica's key is not the run's key for the mesh, so it publishes nothing; use the mesh.nk that "
            "belongs to the keys.json of the run"
        )
        return False
    return True


class _Traces:
    """The spans of a replica.

    A ballot inherits the trace context of the vote that opened it. A span covers its tally, from that vote until the
    decision."""

    def __init__(self) -> None:
        self._contexts = tracing.Contexts()

    def add_event(self, event: Event, outputs: list[Output]) -> None:
        """Link the outputs that an event caused to the trace of the event, even while replaying the log."""
        for output in outputs if event.traceparent else ():
            if isinstance(output.message, BallotOpened | Decision):
                self._contexts.add(output.message.id, event.traceparent)

    def context_of(self, message: Message) -> str:
        """Return the trace context of an output, or an empty string."""
        if isinstance(message, BallotOpened):
            return self._contexts.get(message.id)
        if isinstance(message, Decision):  # without a ballot, it refuses a vote and continues the vote's trace
            return self._contexts.get(message.ballot or message.id)
        return ""

    def open_span(self, message: Message) -> Span:
        """Open a span for the tally of a decision. For other messages, return a span that does nothing."""
        if not isinstance(message, Decision):
            return tracing.OFF
        attributes: dict[str, Attribute] = {
            "oven.tick": message.tick,
            "oven.actuator": message.actuator,
            "oven.ballot_id": message.ballot,
            "oven.decision_id": message.id,
            "oven.verdict": message.verdict,
        }
        opened_ns = self._contexts.stored_ns(message.ballot)
        return tracing.span("tally", self.context_of(message), attributes, kind="consumer", began_ns=opened_ns)


async def serve_history(bus: Bus, run: str, replica: str = "mesh") -> None:
    """Answer requests for past events, addressed to any replica or to this one, until the connection closes."""

    async def read(data: bytes) -> HistoryBatch:
        request = HistoryRequest.model_validate_json(data)
        head = await bus.head(run)
        reply_bytes, events = 0, list[LoggedEvent]()
        if request.after < head:
            async for event in bus.read(run, after=request.after, until=min(head, request.after + request.limit)):
                entry = event.to_logged()
                reply_bytes += len(entry.model_dump_json())
                if events and reply_bytes > REPLY_BYTES:
                    break
                events.append(entry)
        return HistoryBatch(events=tuple(events), head=head)

    subjects = Subjects(run)
    await bus.subscribe(subjects.history, _reply_handler(bus, read), queue="history", max_pending=MAX_PENDING_REQUESTS)
    await bus.subscribe(subjects.history_of(replica), _reply_handler(bus, read), max_pending=MAX_PENDING_REQUESTS)
    await bus.flush()


async def serve_completions(bus: Bus, run: str) -> None:
    """Answer requests for stored completions until the connection closes. One replica answers each request."""

    async def read(data: bytes) -> Message:
        request = CompletionsRequest.model_validate_json(data)
        return await read_batch(bus, run, request.after, request.limit)

    await bus.subscribe(
        Subjects(run).stored_completions, _reply_handler(bus, read), queue="history", max_pending=MAX_PENDING_REQUESTS
    )
    await bus.flush()


def _reply_handler(bus: Bus, read: Callable[[bytes], Awaitable[Message]]) -> Callable[[Msg], Awaitable[None]]:
    """Return a handler that replies to each request with the result of `read` on its body. It never logs the body."""

    async def answer(message: Msg) -> None:
        if not message.reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", message.subject, message.reply)
            return
        try:
            batch = await read(message.data)
        except (ValidationError, BusError) as error:
            problem = f"{error.error_count()} invalid fields" if isinstance(error, ValidationError) else str(error)
            log.warning("a request on %s was not answered: %s", message.subject, problem)
            return
        await bus.publish(message.reply, batch.wire())

    return answer
