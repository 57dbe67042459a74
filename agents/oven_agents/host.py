"""An agent's process: one agent, one connection, no rights beyond its own subjects."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from nats.aio.msg import Msg

from oven_agents.loader import load
from oven_agents.session import Session
from oven_controller import names
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError
from oven_controller.events import Event
from oven_controller.messages import Body, HistoryBatch, HistoryRequest, Malformed, Vote, decode

log = logging.getLogger("oven.agent")

_FIRST = asyncio.FIRST_COMPLETED
REPEAT_S = 0.25
"""In lockstep, how long to wait for the next event before saying `done` again."""
REPEATS = 20
"""And how often at most: a run that is held for a night must not fill its log."""


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
    asyncio.run(host(Session(agent, name), os.environ["OVEN_URL"], os.environ["OVEN_RUN"], credentials))
    return 0


async def host(session: Session, url: str, run: str, credentials: Credentials | None) -> None:
    """Take part until SIGTERM or SIGINT, then say goodbye.

    Live subscriptions come first and history second, so that nothing falls between; what comes twice is dropped by
    the session. Events that arrive while the agent thinks are absorbed together before it is asked again.
    """
    on = names.Subjects(run)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    inbox: asyncio.Queue[Body | Malformed] = asyncio.Queue()

    async def hear(message: Msg) -> None:
        inbox.put_nowait(decode(names.kind(message.subject), message.data))

    async with Bus.connect(url, credentials, name=session.name) as bus:
        for subject in (on.run, on.observation, on.receipt, on.ballot("*"), on.decision("*")):
            await bus.subscribe(subject, hear)
        await bus.flush()
        await _catch_up(session, bus, on)
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            while not inbox.empty():
                session.absorb(inbox.get_nowait())
            for message in session.react():
                subject = on.vote(session.name) if isinstance(message, Vote) else on.agent(session.name)
                if isinstance(message, Vote):
                    log.info("%s %s %s: %s", message.stance, message.actuator, message.value, message.rationale)
                await bus.publish(subject, message.wire())
            for problem in session.problems:
                log.error("the agent raised; it abstains on this window\n%s", problem)
            session.problems.clear()
            waiting = asyncio.create_task(inbox.get())
            for _ in range(REPEATS):
                awaited = session.awaited
                if (
                    awaited is None
                    or (await asyncio.wait({waiting, stopping}, timeout=REPEAT_S, return_when=_FIRST))[0]
                ):
                    break
                await bus.publish(on.agent(session.name), awaited.wire())
            await asyncio.wait({waiting, stopping}, return_when=_FIRST)
            if waiting.done():
                session.absorb(waiting.result())
            else:
                waiting.cancel()
        with contextlib.suppress(BusError):
            await bus.publish(on.agent(session.name), session.leave("asked to stop").wire())
            await bus.flush()


async def _catch_up(session: Session, bus: Bus, on: names.Subjects) -> None:
    after = 0
    while True:
        try:
            reply = await bus.request(on.history, HistoryRequest(after=after).wire())
        except BusError as error:
            log.warning("no history (%s): this agent knows only what comes from now on", error)
            return
        batch = HistoryBatch.model_validate_json(reply)
        for entry in batch.events:
            session.absorb(Event.from_logged(entry).body)
            after = entry.seq
        if not batch.events or after >= batch.head:
            return
