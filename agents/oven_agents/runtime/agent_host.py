"""Runs one or more agents in one process. They share a connection that may only publish on their own subjects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Sequence

import click

from oven_agents import memory_limit
from oven_agents.runtime.agent_loader import default_name, load
from oven_agents.runtime.companion import Companions
from oven_agents.runtime.kg_client import PriorClient, needs_graph
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import UnsentMessage
from oven_agents.sdk.columnar_window import Columns
from oven_core.bus.connection import PATIENT_CONNECT_TIMEOUT_S, Bus
from oven_core.bus.nats_client import InlineMessage
from oven_core.cancellation import on_termination
from oven_core.errors import BusError, ProcessError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import AgentStatus, BallotOpened, Observation, Vote
from oven_core.protocol.subjects import agent_subject
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span
from oven_runs.access.log_sources import read_batches
from oven_runs.settings.agent_options import describe_agent, parse_assignment

log = logging.getLogger("oven.agent")

REPEAT_S = 0.25
"""Seconds to wait before repeating the `done` status in lockstep mode, or a failed request for history."""
MAX_REPEATS = 20
"""Maximum number of repetitions of the `done` status, so that a paused run does not fill its log."""
MIN_INTERVAL_S = 0.008
"""Minimum seconds between two windows, except in lockstep. Observations that arrive in between share a window, so that
short steps do not keep a core busy. Other events, such as ballots, are handled at once."""
HISTORY_TIMEOUT_S = 15.0
"""Seconds to keep requesting the history while no mesh replica answers."""
HISTORY_REPLY_TIMEOUT_S = 2.0
"""Seconds to wait for one reply with history."""


def main(args: list[str]) -> int:
    serve(args, prog_name="agent")
    return 0


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
@click.option("--name", "aliases", multiple=True, help="the name under which an agent votes; once per agent, in order")
@click.option("--option", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="an option of the agent NAME")
@click.option("--shadow", is_flag=True, help="log the votes without counting them")
@click.option("--check", is_flag=True, help="load the agents and exit")
@click.option("--options", "list_options", is_flag=True, help="print the agents' options as JSON and exit")
def serve(
    agents: Sequence[str],
    aliases: Sequence[str],
    settings: Sequence[str],
    shadow: bool,
    check: bool,
    list_options: bool,
) -> None:
    """Take part in the run $OVEN_RUN until SIGTERM or SIGINT. AGENT is the name of an installed agent, or a file."""
    voters = [*aliases] or [default_name(agent) for agent in agents]
    if len(voters) != len(agents):
        raise click.BadParameter(
            f"{len(agents)} agents have {len(voters)} names; give every agent a --name, or use --name for none of them"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if limit_mb := os.environ.get("OVEN_AGENTS_MEMORY_MB"):
        memory_limit.set_limit(int(limit_mb))
    options = _parse_options(settings, voters)
    instances = [load(agent, options.get(name), name)[1] for agent, name in zip(agents, voters, strict=True)]
    if list_options:
        print(json.dumps([describe_agent(name, type(agent)) for name, agent in zip(voters, instances, strict=True)]))
    if not check and not list_options:
        voters = [names.validate("agent", name) for name in voters]
        columns = Columns()  # shared, because all agents of the process read the same observations
        _run_from_environment(
            [
                Session(agent, name, shadow=shadow, create_window=columns.window)
                for name, agent in zip(voters, instances, strict=True)
            ]
        )


def _run_from_environment(sessions: Sequence[Session]) -> None:
    """Take part in the run that the environment variables describe. The stack sets them."""
    voters = [session.name for session in sessions]
    credentials = Credentials.from_environment()
    url, run, learner_key = os.environ["OVEN_URL"], os.environ["OVEN_RUN"], os.environ.get("OVEN_LEARNER_KEY")
    process_name = credentials.name if credentials and len(voters) > 1 else ""
    tracing.start(process_name or f"agent-{voters[0]}", run)
    out_of_memory = memory_limit.out_of_memory_message(*voters)
    try:
        asyncio.run(host(sessions, url, run, credentials, learner_key))
    except MemoryError:  # not from an agent's code, because its session handles that
        for session in sessions:
            vars(session.agent).clear()  # frees memory for reporting the error
        raise ProcessError(out_of_memory) from None
    finally:
        tracing.shutdown()


def _parse_options(settings: Sequence[str], voters: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse `NAME.OPTION=VALUE` into options by agent. Raises UnknownNameError or ConfigError."""
    options: dict[str, dict[str, str]] = {}
    for setting in settings:
        key, value = parse_assignment(setting)
        name, _, option = key.rpartition(".")
        if name not in voters:
            raise UnknownNameError("agent of this process", name, voters)
        options.setdefault(name, {})[option] = value
    return options


async def host(
    sessions: Sequence[Session], url: str, run: str, credentials: Credentials | None, learner_key: str | None = None
) -> None:
    """Take part in a run until SIGTERM or SIGINT, then announce the end.

    The agents share the connection, and each event is read and verified once for all of them. An agent that raises
    an exception abstains. An agent that never returns also blocks the other agents of its process.

    The live subscriptions start before the history is read, so that no event is missed. Sessions drop duplicates. After
    a lost connection, live events wait until the history has filled the gap, because they are verified with keys from
    the history. Events that arrive while the agents work are absorbed together before the next vote. `learner_key` is
    the learner's public key, if known.

    Raises BusError if there is no server at the start, or if the connection is closed permanently.
    """
    subjects = names.Subjects(run)
    stop, wake = asyncio.Event(), asyncio.Event()

    def request_stop() -> None:
        stop.set()
        wake.set()

    on_termination(request_stop)
    inbox: deque[Event] = deque()
    contexts = tracing.Contexts()
    keyring = Keyring(learner_key)

    async with Bus.connect(
        url, credentials, name=sessions[0].name, on_change=wake.set, timeout_s=PATIENT_CONNECT_TIMEOUT_S
    ) as bus:
        prior = PriorClient(bus)
        companions = Companions(sessions, bus, run, learner_key)
        publishers = [Publisher(session, bus, run, prior, contexts) for session in sessions]
        pace = _Pace(wake)

        def receive(message: InlineMessage) -> None:
            context = tracing.context_of(message.headers)
            inbox.append(Event.from_message(0, message.subject, message.data, UNKNOWN_TIME, message.headers, context))
            if message.subject != subjects.observation or _is_lockstep(sessions):
                wake.set()
            else:
                pace.wake_when_due()

        topics = (subjects.run, subjects.observation, subjects.receipt, subjects.ballot("*"), subjects.decision("*"))
        for subject in topics:
            await bus.subscribe_inline(subject, receive)
        await bus.flush()
        last_seq = 0  # newest sequence number from history
        handled_disconnects = -1  # `bus.disconnects` when history was last read
        while not stop.is_set():
            wake.clear()
            pace.begin()
            while handled_disconnects != bus.disconnects:
                handled_disconnects = bus.disconnects
                last_seq = await _catch_up(sessions, keyring, bus, run, last_seq, stop)
                for session in sessions:
                    session.announce()
            _absorb_inbox(inbox, keyring, contexts, sessions)
            await react(publishers)
            _log_problems(sessions)
            await _repeat_done_status(publishers, wake)
            if bus.closed.is_set():
                reason = bus.errors[-1] if bus.errors else "no reason given"
                raise BusError(f"the connection was closed permanently: {reason}")
            await wake.wait()
        await companions.end()
        with contextlib.suppress(BusError):
            for session in sessions:
                await bus.publish(subjects.agent(session.name), session.leave("asked to stop").wire())
            await bus.flush()


class _Pace:
    """Wakes the host for new observations, at most once per MIN_INTERVAL_S."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake, self._loop = wake, asyncio.get_running_loop()
        self._due_s, self._is_scheduled = 0.0, False

    def begin(self) -> None:
        """Begin an interval, because the host now handles what has arrived."""
        self._due_s = self._loop.time() + MIN_INTERVAL_S

    def wake_when_due(self) -> None:
        """Wake the host at the end of the interval, or now if it has ended."""
        if self._loop.time() >= self._due_s:
            self._wake.set()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_at(self._due_s, self._wake_now)

    def _wake_now(self) -> None:
        self._is_scheduled = False
        self._wake.set()


def _is_lockstep(sessions: Sequence[Session]) -> bool:
    run = sessions[0].run
    return run is not None and run.lockstep


def _absorb_inbox(
    inbox: deque[Event], keyring: Keyring, contexts: tracing.Contexts, sessions: Sequence[Session]
) -> None:
    """Verify and absorb all waiting events."""
    while inbox:
        event = keyring.verify(inbox.popleft())
        if isinstance(event.body, Observation | BallotOpened):
            contexts.add(trace_key(event.body), event.traceparent)
        _absorb(sessions, event)


def _log_problems(sessions: Sequence[Session]) -> None:
    for session in sessions:
        for problem in session.problems:
            log.error("%s: the agent raised an exception and abstains on this window\n%s", session.name, problem)
        session.problems.clear()


async def _repeat_done_status(publishers: Sequence[Publisher], wake: asyncio.Event) -> None:
    """In lockstep mode, repeat the `done` status until the mesh reacts."""
    for _ in range(MAX_REPEATS):
        if not any(publisher.session.awaited_status for publisher in publishers):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPEAT_S):
                await wake.wait()
            return
        for publisher in publishers:
            if (status := publisher.session.awaited_status) is not None:
                await publisher.publish([status])


def _absorb(sessions: Sequence[Session], event: Event) -> None:
    """Pass an event to all sessions. An alert goes only to the agent that raised it, which needs it after a restart."""
    for session in sessions:
        if not isinstance(event.body, Alert) or event.author == session.name:
            session.absorb(event.body)


async def _catch_up(
    sessions: Sequence[Session], keyring: Keyring, bus: Bus, run: str, after: int, stop: asyncio.Event
) -> int:
    """Absorb the log's events after the sequence number `after`, and return the newest sequence number. The request is
    repeated for HISTORY_TIMEOUT_S, because the mesh replicas may be restarting, too."""
    give_up_at = asyncio.get_running_loop().time() + HISTORY_TIMEOUT_S
    while not stop.is_set():
        try:
            async for batch in read_batches(bus, run, after, HISTORY_REPLY_TIMEOUT_S):
                for event in map(keyring.verify, batch):
                    _absorb(sessions, event)
                    after = event.seq
                if stop.is_set():
                    break
            break
        except BusError as error:
            if bus.closed.is_set() or asyncio.get_running_loop().time() > give_up_at:
                log.warning("cannot read the history (%s); continuing with new events only", error)
                break
            await asyncio.sleep(REPEAT_S)
    return after


def trace_key(body: Observation | BallotOpened) -> str:
    """Return the key of a message's trace: a ballot's id, or an observation's tick."""
    return body.id if isinstance(body, BallotOpened) else str(body.tick)


async def react(publishers: Sequence[Publisher]) -> None:
    """Ask every agent to vote, then publish all messages. Requests to the graph delay only the agent that asks."""
    began_ns = time.time_ns()
    asking = list[Awaitable[None]]()
    for publisher in publishers:
        if messages := publisher.session.react():
            publication = publisher.consult_and_publish(messages, began_ns)
            if any(map(needs_graph, messages)):
                asking.append(publication)
            else:  # without a task, which would cost an iteration of the event loop
                await publication
    if asking:
        await asyncio.gather(*asking)


class Publisher:
    """Publishes the messages of one agent."""

    def __init__(self, session: Session, bus: Bus, run: str, prior: PriorClient, contexts: tracing.Contexts) -> None:
        """`contexts` holds the traces that the process knows, by `trace_key`."""
        self.session = session
        self._bus, self._run, self._prior, self._contexts = bus, run, prior, contexts

    async def consult_and_publish(self, messages: Sequence[UnsentMessage], began_ns: int) -> None:
        """Consult the graph, then publish. `began_ns` is the time of the call to the agent, in Unix nanoseconds."""
        session = self.session
        resolved = await self._prior.consult(messages, session.run, session.knobs, session.in_flight)
        await self.publish(resolved, began_ns)

    async def publish(self, messages: Sequence[Vote | AgentStatus | Alert], began_ns: int | None = None) -> None:
        """Publish. Drop a message that cannot be sent, because the next tick brings new ones."""
        name = self.session.name
        for message in messages:
            subject = agent_subject(self._run, name, message)
            with self._span(message, began_ns) as span:
                try:
                    await self._bus.publish(subject, message.wire(), tracing.headers(span.traceparent))
                except BusError as error:
                    log.warning("%s", error)
            if isinstance(message, AgentStatus) and message.state == "notice":
                log.info("%s: %s", name, message.reason)
            elif isinstance(message, Alert):
                log.info("%s: %s %s: %s", name, message.symptom, message.state, message.reason)

    def _span(self, message: Vote | AgentStatus | Alert, began_ns: int | None) -> Span:
        """Return a vote's span, which begins with the call to the agent. Other messages are not traced."""
        if not isinstance(message, Vote):
            return tracing.OFF
        attributes: dict[str, Attribute] = {
            "oven.agent": self.session.name, "oven.tick": message.tick, "oven.actuator": message.actuator,
            "oven.stance": message.stance,
        }  # fmt: skip
        parent = self._contexts.get(message.ballot) or self._contexts.get(str(message.tick))
        return tracing.span("vote", parent, attributes, kind="consumer", began_ns=began_ns)
