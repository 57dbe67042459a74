"""The prior service's process: a NATS micro service over one frozen graph and what outcomes taught.

It learns from the run's log, which it reads again when it starts anew, and from what is told on `outcome`, which only
the stack may do: that is kept in a file if one is named. A request that cannot be read is answered with an error, in
the micro services' headers. Replies go to inboxes only: otherwise a stranger's request could have this service write
where its asker may not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import nats.micro
import typer
from nats.micro.request import Request, ServiceError
from nats.micro.service import ServiceConfig

from oven_core.bus.connection import PATIENT_S, Bus
from oven_core.bus.nats_client import reply_subject
from oven_core.cancellation import call_at_end, end
from oven_core.errors import OvenError
from oven_core.mesh.actuator_values import clip
from oven_core.protocol import names
from oven_core.protocol.graph_requests import RequestPart, TokenPriorRequest
from oven_core.security.credentials import Credentials
from oven_kg.checked_graph import load
from oven_kg.service import token_prior_process
from oven_kg.service.endpoints import Answers, opened, read
from oven_kg.service.outcome_follower import follow
from oven_kg.service.posterior_store import PersistentAnswers
from oven_kg.service.token_prior_process import BUILT_IN, Graphs
from oven_kg.service.uploads import Uploads

log = logging.getLogger("oven.kg")

NAME: Final = "oven-kg"
VERSION: Final = "1.0.0"
"""Of the endpoints; the graph has its hash."""
QUEUE: Final = "kg"
SHORT: Final = 4096
"""Bytes. A request that names an upload has fewer; reading a longer one would hold the other endpoints up."""
LARGEST: Final = 1_000_000
"""Bytes of an answer; a message of the bus, with its headers, has at most 1 MiB."""

Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]


def main(args: list[str]) -> int:
    """Entry point of the service's process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(serve)
    app(args, prog_name="kg")
    return 0


def serve(
    file: Annotated[Path | None, typer.Argument(metavar="file", help="a graph in place of the built-in one")] = None,
    posteriors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="what was learnt (`oven-controller kg learn`); what is told here is added"),
    ] = None,
    large: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="a large graph for query, curriculum and token_prior (`kg import`)"),
    ] = None,
) -> None:
    """Answer on the bus until told to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    credentials = Credentials.from_environment()
    graph = load(file)
    beside = opened(large) if large else None
    answers = PersistentAnswers(graph, posteriors, beside) if posteriors else Answers(graph, large=beside)
    run, pin = os.environ.get("OVEN_RUN", ""), os.environ.get("OVEN_LEARNER_KEY")
    asyncio.run(_until_told(answers, os.environ["OVEN_URL"], credentials, run, pin, Graphs(file, large)))


async def _until_told(
    answers: Answers,
    url: str,
    credentials: Credentials | None,
    run: str = "",
    pin: str | None = None,
    graphs: Graphs = BUILT_IN,
) -> None:
    stop = asyncio.Event()
    call_at_end(stop.set)
    async with Bus.connect(url, credentials, name="kg", timeout_s=PATIENT_S) as bus, serving(bus, answers, graphs):
        graph = answers.graph
        log.info("graph %s, %d nodes, %d edges", graph.sha[:12], len(graph.nodes), len(graph.edges))
        if answers.large is not None:
            arrays = answers.large.arrays
            log.info("large graph %s, %d nodes, %d edges", arrays.sha[:12], arrays.nodes, arrays.edges)
        following = asyncio.create_task(follow(bus, run, answers, pin)) if run else None
        await stop.wait()
        if following is not None:
            await end(following)


@contextlib.asynccontextmanager
async def serving(bus: Bus, answers: Answers, graphs: Graphs = BUILT_IN) -> AsyncIterator[None]:
    """Answer for as long as the context lasts, through the server's restarts. `graphs`: where the answers are from."""
    large = {"large": answers.large.sha} if answers.large else {}
    config = ServiceConfig(
        name=NAME,
        version=VERSION,
        description="Causes and remedies in training, with sources",
        metadata={"graph": answers.graph.sha, **large},
        queue_group=QUEUE,
    )
    service = await nats.micro.add_service(bus.client, config)
    with ThreadPoolExecutor(1, "oven-kg-large") as beside:
        for endpoint, answer in _endpoints(answers, graphs, beside).items():
            await service.add_endpoint(name=endpoint, subject=names.kg(endpoint), handler=_answering(answer))
        await bus.flush()
        if answers.large is not None:
            beside.submit(answers.large.prepare)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a server that is gone has nothing to be told
                async with asyncio.timeout(2):
                    await service.stop()


def _endpoints(answers: Answers, graphs: Graphs, beside: Executor) -> Mapping[str, Answer]:
    """Name → how it is answered: here; by a large graph in the thread `beside`, for some of its answers take
    milliseconds, most of them in numpy, which lets go of the interpreter; scores of tokens in a separate process.
    """
    uploads = Uploads()

    def here(endpoint: str) -> Answer:
        async def answer(request: bytes) -> bytes:
            return answers(endpoint, request) or b""

        return answer

    def in_thread(endpoint: str) -> Answer:
        async def answer(request: bytes) -> bytes:
            found = await asyncio.get_running_loop().run_in_executor(beside, answers, endpoint, request)
            return found or b""

        return answer

    async def upload(request: bytes) -> bytes:
        return uploads.take(read(RequestPart, request), asyncio.get_running_loop().time()).wire()

    async def token_prior(request: bytes) -> bytes:
        named = read(TokenPriorRequest, request).upload if len(request) < SHORT else ""
        whole = uploads.whole(named) if named else request
        return await token_prior_process.answer(whole, graphs, compressed=bool(named))

    large = answers.large.endpoints if answers.large else {}
    found = {endpoint: (in_thread if endpoint in large else here)(endpoint) for endpoint in answers.endpoints}
    return found | {"token_prior": token_prior, "upload": upload}


def _answering(answer: Answer) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        reply = reply_subject(request)
        if not reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", request.subject, clip(reply, 120))
            return
        try:
            found = await answer(request.data)
        except OvenError as error:
            raise ServiceError("400", clip(str(error), 300)) from error
        if len(found) > LARGEST:
            raise ServiceError("400", f"the answer has {len(found)} bytes, and the bus takes {LARGEST}; ask for less")
        await request.respond(found)

    return handle
