"""The prior service's process: a NATS micro service with three endpoints over one frozen graph.

It answers and holds no state, so that any number may run in its queue group. A request that cannot be read is answered
with an error, in the micro services' headers. Replies go to inboxes only: otherwise a stranger's request could have
this service write where its asker may not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import nats.micro
from nats.micro.request import Request, ServiceError
from nats.micro.service import ServiceConfig
from pydantic import ValidationError

from oven_controller import names
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.mesh.values import clip
from oven_controller.messages import DiagnoseRequest, GraphInfoRequest, JudgeRequest, Message
from oven_kg.diagnose import diagnose
from oven_kg.graph import Knowledge, load
from oven_kg.judge import judge

log = logging.getLogger("oven.kg")

NAME: Final = "oven-kg"
VERSION: Final = "1.0.0"
"""Of the endpoints; the graph has its hash."""
QUEUE: Final = "kg"

_Asked = TypeVar("_Asked", bound=Message)


def main(args: list[str]) -> int:
    """Entry point of the service's process. FILE: a graph in place of the built-in one."""
    parser = argparse.ArgumentParser(prog="kg")
    parser.add_argument("file", nargs="?", type=Path)
    options = parser.parse_args(args)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    path = os.environ.get("OVEN_CREDS")
    credentials = Credentials.load(Path(path)) if path else None
    asyncio.run(_until_told(load(options.file), os.environ["OVEN_URL"], credentials))
    return 0


async def _until_told(graph: Knowledge, url: str, credentials: Credentials | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Bus.connect(url, credentials, name="kg") as bus, serving(bus, graph):
        log.info("graph %s, %d nodes, %d edges", graph.sha[:12], len(graph.nodes), len(graph.edges))
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(bus: Bus, graph: Knowledge) -> AsyncIterator[None]:
    """Answer for as long as the context lasts, through the server's restarts."""
    config = ServiceConfig(
        name=NAME,
        version=VERSION,
        description="Causes and remedies in training, with sources",
        metadata={"graph": graph.sha},
        queue_group=QUEUE,
    )
    service = await nats.micro.add_service(bus.client, config)
    answers: dict[str, Callable[[Request], Awaitable[None]]] = {
        "diagnose": _answering(DiagnoseRequest, lambda request: diagnose(graph, request)),
        "judge": _answering(JudgeRequest, lambda request: judge(graph, request)),
        "info": _answering(GraphInfoRequest, lambda _: graph.info()),
    }
    for endpoint, answer in answers.items():
        await service.add_endpoint(name=endpoint, subject=names.kg(endpoint), handler=answer)
    await bus.flush()
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a server that is gone has nothing to be told
            await asyncio.wait_for(service.stop(), 2)


def _answering(asked: type[_Asked], answer: Callable[[_Asked], Message]) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        reply = request._msg.reply  # nats-py keeps it to itself
        if not reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", request.subject, clip(reply, 120))
            return
        try:
            body = asked.model_validate_json(request.data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise ServiceError("400", clip(f"not a {asked.__name__}: {where}: {first['msg']}", 300)) from error
        await request.respond(answer(body).wire())

    return handle
