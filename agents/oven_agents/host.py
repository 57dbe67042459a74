"""An agent's process: one agent, one connection, no rights beyond its own subjects."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from pathlib import Path

from nats.aio.msg import Msg

from oven_agents.loader import load
from oven_agents.session import Session
from oven_agents.speech import Speech
from oven_controller import names, telemetry
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError
from oven_controller.events import Event
from oven_controller.messages import Body, HistoryBatch, HistoryRequest
from oven_controller.wire import Malformed, decode

log = logging.getLogger("oven.agent")

REPEAT_S = 0.25
"""In lockstep, how long to wait for the next event before saying `done` again."""
REPEATS = 20
"""And how often at most: a run that is held for a night must not fill its log."""
HISTORY_S = 15.0
"""How long to go on asking for history when nobody answers."""


def main(args: list[str]) -> int:
    """Entry point of the agent's process: NAME or FILE.py, and `--name` to appear under another name."""
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("agent")
    parser.add_argument("--name")
    options = parser.parse_args(args)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    default_name, agent = load(options.agent)
    name = names.checked("agent", options.name or default_name)
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"])) if os.environ.get("OVEN_CREDS") else None
    telemetry.start(f"agent-{name}", os.environ["OVEN_RUN"])
    try:
        asyncio.run(host(Session(agent, name), os.environ["OVEN_URL"], os.environ["OVEN_RUN"], credentials))
    finally:
        telemetry.shutdown()
    return 0


async def host(session: Session, url: str, run: str, credentials: Credentials | None) -> None:
    """Take part until SIGTERM or SIGINT, then say goodbye.

    Live subscriptions come first and history second, so that nothing falls between; what comes twice is dropped by
    the session. The same again whenever the connection was lost: until history has filled the gap, what is heard
    waits. Events that arrive while the agent thinks are absorbed together before it is asked again.

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
    inbox: deque[Body | Malformed] = deque()

    async with Bus.connect(url, credentials, name=session.name, changed=news.set) as bus:
        speech = Speech(session, bus, on)

        async def hear(message: Msg) -> None:
            body = decode(names.kind(message.subject), message.data)
            speech.heard(body, telemetry.carried(message.headers))
            inbox.append(body)
            news.set()

        for subject in (on.run, on.observation, on.receipt, on.ballot("*"), on.decision("*")):
            await bus.subscribe(subject, hear)
        await bus.flush()
        known, filled = 0, -1  # the log's sequence up to which history told, and the loss of connection it made good
        while not stop.is_set():
            news.clear()
            while filled != bus.losses:
                filled = bus.losses
                known = await _catch_up(session, bus, on, known, stop)
                session.announce()
            while inbox:
                session.absorb(inbox.popleft())
            await speech.react()
            for problem in session.problems:
                log.error("the agent raised; it abstains on this window\n%s", problem)
            session.problems.clear()
            for _ in range(REPEATS):
                awaited = session.awaited
                if awaited is None or await _within(news, REPEAT_S):
                    break
                await speech.say([awaited])
            if bus.closed.is_set():
                raise BusError(f"the connection was closed for good: {bus.errors[-1] if bus.errors else 'no reason'}")
            await news.wait()
        with contextlib.suppress(BusError):
            await bus.publish(on.agent(session.name), session.leave("asked to stop").wire())
            await bus.flush()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _catch_up(session: Session, bus: Bus, on: names.Subjects, after: int, stop: asyncio.Event) -> int:
    """Absorb what the log holds after that sequence; the last one that was told. The mesh answers, and may be starting
    again itself, so it is asked for a while."""
    patience = asyncio.get_running_loop().time() + HISTORY_S
    while not stop.is_set():
        try:
            reply = await bus.request(on.history, HistoryRequest(after=after).wire())
        except BusError as error:
            if bus.closed.is_set() or asyncio.get_running_loop().time() > patience:
                log.warning("no history (%s): this agent knows only what comes from now on", error)
                break
            await asyncio.sleep(REPEAT_S)
            continue
        batch = HistoryBatch.model_validate_json(reply)
        for entry in batch.events:
            session.absorb(Event.from_logged(entry).body)
            after = entry.seq
        if not batch.events or after >= batch.head:
            break
    return after
