"""A process of agents: one of them, or several that share a connection; no rights beyond their own subjects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import typer

from oven_agents import memory_limit
from oven_agents.runtime.companion import Companions
from oven_agents.runtime.kg_client import Prior
from oven_agents.runtime.loader import default_name, load
from oven_agents.runtime.publisher import Publisher, react, trace_key
from oven_agents.sdk.session import Session
from oven_core.bus.connection import PATIENT_S, Bus
from oven_core.bus.nats_client import InlineMessage
from oven_core.cancellation import call_at_end
from oven_core.errors import BusError, ProcessError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import BallotOpened, Observation
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_runs.access.log_sources import batches
from oven_runs.settings.agent_options import assigned, described

log = logging.getLogger("oven.agent")

REPEAT_S = 0.25
"""In lockstep, how long to wait for the next event before saying `done` again."""
REPEATS = 20
"""And how often at most: a run that is held for a night must not fill its log."""
HISTORY_S = 15.0
"""How long to continue asking for history when no one answers."""
HISTORY_ANSWER_S = 2.0
"""How long to wait for one answer."""


def main(args: list[str]) -> int:
    """Entry point of a process of agents."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(serve)
    app(args, prog_name="agent")
    return 0


def serve(
    agents: Annotated[list[str], typer.Argument(metavar="agent", help="the name of an installed one, or a file")],
    called: Annotated[
        list[str] | None, typer.Option("--name", help="for each agent, in their order: the name that it votes under")
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME.OPTION=VALUE", help="of the agent of that name")
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="their votes are logged, and do not count")] = False,
    check: Annotated[bool, typer.Option("--check", help="load the agents, and end")] = False,
    tell: Annotated[bool, typer.Option("--options", help="print as JSON which options they have, and end")] = False,
) -> None:
    """Take part in the run of OVEN_RUN until told to end."""
    called = called or [default_name(agent) for agent in agents]
    if len(called) != len(agents):
        raise typer.BadParameter(f"{len(agents)} agents and {len(called)} names; give each a --name, or none")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if most := os.environ.get("OVEN_AGENTS_MEMORY_MB"):
        memory_limit.limit(int(most))
    options = _given(given or (), called)
    loaded = [load(agent, options.get(name), name)[1] for agent, name in zip(agents, called, strict=True)]
    if tell:
        print(json.dumps([described(name, type(agent)) for name, agent in zip(called, loaded, strict=True)]))
    if not check and not tell:
        called = [names.checked("agent", name) for name in called]
        _host([Session(agent, name, shadow=shadow) for name, agent in zip(called, loaded, strict=True)])


def _host(sessions: Sequence[Session]) -> None:
    """`host` by the environment that the stack sets."""
    called = [session.name for session in sessions]
    credentials = Credentials.from_environment()
    url, run, pin = os.environ["OVEN_URL"], os.environ["OVEN_RUN"], os.environ.get("OVEN_LEARNER_KEY")
    shared = credentials.name if credentials and len(called) > 1 else ""
    tracing.start(shared or f"agent-{called[0]}", run)
    why = memory_limit.reached(*called)
    try:
        asyncio.run(host(sessions, url, run, credentials, pin))
    except MemoryError:  # not in an agent's own code, which the session answers for
        for session in sessions:
            vars(session.agent).clear()
        raise ProcessError(why) from None
    finally:
        tracing.shutdown()


def _given(texts: Sequence[str], called: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by the agent's name, of `NAME.OPTION=VALUE`. Raises UnknownNameError, ConfigError."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        key, value = assigned(text)
        name, _, option = key.rpartition(".")
        if name not in called:
            raise UnknownNameError("agent of this process", name, called)
        found.setdefault(name, {})[option] = value
    return found


async def host(
    sessions: Sequence[Session], url: str, run: str, credentials: Credentials | None, pin: str | None = None
) -> None:
    """Take part until SIGTERM or SIGINT, then say goodbye. Several agents share the connection, and each event is read
    and judged once for all of them; one that raises abstains, one that never comes back holds up the others too.

    Live subscriptions come first and history second, so that nothing falls between; what comes twice is dropped by
    the sessions. The same again whenever the connection was lost: until history has filled the gap, what is heard
    waits, and is judged only then, by the keys that history told. Events that arrive while the agents think are
    absorbed together before they are asked again. `pin`: the learner's public key, if known.

    Raises BusError when there is no server to begin with, or when the connection is closed for good.
    """
    on = names.Subjects(run)
    stop, news = asyncio.Event(), asyncio.Event()

    def asked() -> None:
        stop.set()
        news.set()

    call_at_end(asked)
    inbox: deque[Event] = deque()
    contexts = tracing.Contexts()
    keyring = Keyring(pin)

    async with Bus.connect(url, credentials, name=sessions[0].name, changed=news.set, timeout_s=PATIENT_S) as bus:
        prior = Prior(bus)
        companions = Companions(sessions, bus, run, pin)
        publishers = [Publisher(session, bus, run, prior, contexts) for session in sessions]

        def hear(message: InlineMessage) -> None:
            context = tracing.carried(message.headers)
            inbox.append(Event.carried(0, message.subject, message.data, UNKNOWN, message.headers, context))
            news.set()

        for subject in (on.run, on.observation, on.receipt, on.ballot("*"), on.decision("*")):
            await bus.subscribe_inline(subject, hear)
        await bus.flush()
        known, filled = 0, -1  # the log's sequence up to which history told, and the loss of connection it made good
        while not stop.is_set():
            news.clear()
            while filled != bus.losses:
                filled = bus.losses
                known = await _catch_up(sessions, keyring, bus, run, known, stop)
                for session in sessions:
                    session.announce()
            _read(inbox, keyring, contexts, sessions)
            await react(publishers)
            _log_problems(sessions)
            await _repeat_awaited(publishers, news)
            if bus.closed.is_set():
                raise BusError(f"the connection was closed for good: {bus.errors[-1] if bus.errors else 'no reason'}")
            await news.wait()
        await companions.end()
        with contextlib.suppress(BusError):
            for session in sessions:
                await bus.publish(on.agent(session.name), session.leave("asked to stop").wire())
            await bus.flush()


def _read(inbox: deque[Event], keyring: Keyring, contexts: tracing.Contexts, sessions: Sequence[Session]) -> None:
    """Absorb all that has come."""
    while inbox:
        event = keyring.verify(inbox.popleft())
        if isinstance(event.body, Observation | BallotOpened):
            contexts.keep(trace_key(event.body), event.traceparent)
        _absorb(sessions, event)


def _log_problems(sessions: Sequence[Session]) -> None:
    for session in sessions:
        for problem in session.problems:
            log.error("%s: the agent raised; it abstains on this window\n%s", session.name, problem)
        session.problems.clear()


async def _repeat_awaited(publishers: Sequence[Publisher], news: asyncio.Event) -> None:
    """In lockstep, say `done` again until something comes of it."""
    for _ in range(REPEATS):
        if not any(one.session.awaited for one in publishers) or await _within(news, REPEAT_S):
            return
        for one in publishers:
            await one.say([awaited] if (awaited := one.session.awaited) else [])


def _absorb(sessions: Sequence[Session], event: Event) -> None:
    """An alert is heard by who raised it alone: one that started again knows from history what it has said."""
    for session in sessions:
        if not isinstance(event.body, Alert) or event.author == session.name:
            session.absorb(event.body)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _catch_up(
    sessions: Sequence[Session], keyring: Keyring, bus: Bus, run: str, after: int, stop: asyncio.Event
) -> int:
    """Absorb what the log holds after that sequence; the last one that was told. The mesh answers, and may be starting
    again itself, so it is asked for a while."""
    patience = asyncio.get_running_loop().time() + HISTORY_S
    while not stop.is_set():
        try:
            async for batch in batches(bus, run, after, HISTORY_ANSWER_S):
                for event in map(keyring.verify, batch):
                    _absorb(sessions, event)
                    after = event.seq
                if stop.is_set():
                    break
            break
        except BusError as error:
            if bus.closed.is_set() or asyncio.get_running_loop().time() > patience:
                log.warning("no history (%s): nothing is known here but what comes from now on", error)
                break
            await asyncio.sleep(REPEAT_S)
    return after
