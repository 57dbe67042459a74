"""A process of agents: one of them, or several that share a connection; no rights beyond their own subjects."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from oven_agents import memory_limit
from oven_agents.runtime.kg_client import Prior
from oven_agents.runtime.loader import default_name, load
from oven_agents.runtime.publisher import Speech, belonging, react
from oven_agents.sdk.session import Session
from oven_controller.bus.connection import Bus
from oven_controller.bus.nats_client import Heard
from oven_controller.errors import BusError, ProcessError, UnknownNameError
from oven_controller.protocol import names
from oven_controller.protocol.codec import Malformed
from oven_controller.protocol.events import UNKNOWN, Event
from oven_controller.protocol.messages import BallotOpened, HistoryBatch, HistoryRequest, LogMessage, Observation
from oven_controller.security.credentials import Credentials
from oven_controller.security.signing import Keyring
from oven_controller.settings.agent_options import assigned, described
from oven_controller.telemetry import tracing

log = logging.getLogger("oven.agent")

REPEAT_S = 0.25
"""In lockstep, how long to wait for the next event before saying `done` again."""
REPEATS = 20
"""And how often at most: a run that is held for a night must not fill its log."""
HISTORY_S = 15.0
"""How long to continue asking for history when no one answers."""


def main(args: list[str]) -> int:
    """Entry point of the process: one or more agents (NAME or FILE.py), `--name` for each of them to appear under
    another name, `--option NAME.OPTION=VALUE` for the one of that name, and `--shadow`. `--check` loads them and ends;
    `--options` prints as JSON which options they have, and ends."""
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("agents", nargs="+", metavar="agent")
    parser.add_argument("--name", action="append", default=[], dest="names")
    parser.add_argument("--option", action="append", default=[], dest="given")
    parser.add_argument("--shadow", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--options", action="store_true", dest="tell")
    options = parser.parse_args(args)
    if options.names and len(options.names) != len(options.agents):
        parser.error(f"{len(options.agents)} agents and {len(options.names)} names; give each a --name, or none")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if most := os.environ.get("OVEN_AGENTS_MEMORY_MB"):
        memory_limit.limit(int(most))
    called = options.names or [default_name(agent) for agent in options.agents]
    given = _given(options.given, called)
    loaded = [load(agent, given.get(name), name)[1] for agent, name in zip(options.agents, called, strict=True)]
    if options.tell:
        print(json.dumps([described(name, type(agent)) for name, agent in zip(called, loaded, strict=True)]))
    if options.check or options.tell:
        return 0
    called = [names.checked("agent", name) for name in called]
    sessions = [Session(agent, name, shadow=options.shadow) for name, agent in zip(called, loaded, strict=True)]
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"])) if os.environ.get("OVEN_CREDS") else None
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
    return 0


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
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        news.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    inbox: deque[Event] = deque()
    contexts = tracing.Contexts()
    keyring = Keyring(pin)

    async with Bus.connect(url, credentials, name=sessions[0].name, changed=news.set) as bus:
        prior = Prior(bus)
        speeches = [Speech(session, bus, on, prior, contexts) for session in sessions]

        def hear(message: Heard) -> None:
            context = tracing.carried(message.headers)
            inbox.append(Event.carried(0, message.subject, message.data, UNKNOWN, message.headers, context))
            news.set()

        for subject in (on.run, on.observation, on.receipt, on.ballot("*"), on.decision("*")):
            await bus.hear(subject, hear)
        await bus.flush()
        known, filled = 0, -1  # the log's sequence up to which history told, and the loss of connection it made good
        while not stop.is_set():
            news.clear()
            while filled != bus.losses:
                filled = bus.losses
                known = await _catch_up(sessions, keyring, bus, on, known, stop)
                for session in sessions:
                    session.announce()
            while inbox:
                event = keyring.judge(inbox.popleft())
                if isinstance(event.body, Observation | BallotOpened):
                    contexts.keep(belonging(event.body), event.traceparent)
                _absorb(sessions, event.body)
            await react(speeches)
            for session in sessions:
                for problem in session.problems:
                    log.error("%s: the agent raised; it abstains on this window\n%s", session.name, problem)
                session.problems.clear()
            for _ in range(REPEATS):
                if not any(session.awaited for session in sessions) or await _within(news, REPEAT_S):
                    break
                for speech in speeches:
                    await speech.say([awaited] if (awaited := speech.session.awaited) else [])
            if bus.closed.is_set():
                raise BusError(f"the connection was closed for good: {bus.errors[-1] if bus.errors else 'no reason'}")
            await news.wait()
        with contextlib.suppress(BusError):
            for session in sessions:
                await bus.publish(on.agent(session.name), session.leave("asked to stop").wire())
            await bus.flush()


def _absorb(sessions: Sequence[Session], body: LogMessage | Malformed) -> None:
    for session in sessions:
        session.absorb(body)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _catch_up(
    sessions: Sequence[Session], keyring: Keyring, bus: Bus, on: names.Subjects, after: int, stop: asyncio.Event
) -> int:
    """Absorb what the log holds after that sequence; the last one that was told. The mesh answers, and may be starting
    again itself, so it is asked for a while."""
    patience = asyncio.get_running_loop().time() + HISTORY_S
    while not stop.is_set():
        try:
            reply = await bus.request(on.history, HistoryRequest(after=after).wire())
        except BusError as error:
            if bus.closed.is_set() or asyncio.get_running_loop().time() > patience:
                log.warning("no history (%s): nothing is known here but what comes from now on", error)
                break
            await asyncio.sleep(REPEAT_S)
            continue
        batch = HistoryBatch.model_validate_json(reply)
        for entry in batch.events:
            _absorb(sessions, keyring.judge(Event.from_logged(entry)).body)
            after = entry.seq
        if not batch.events or after >= batch.head:
            break
    return after
