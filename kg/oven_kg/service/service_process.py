"""The prior service's process: a NATS microservice that answers from one frozen graph.

It answers a malformed request with an error in the microservice's headers. The requester chooses the reply subject, so
the service replies only to inboxes. Otherwise, a client could make it publish on subjects that are forbidden to the
client.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import click

from oven_core.bus import Request, ServiceConfig, ServiceError, add_service
from oven_core.bus.connection import PATIENT_CONNECT_TIMEOUT_S, Bus
from oven_core.bus.nats_client import reply_subject
from oven_core.cancellation import on_termination
from oven_core.errors import ConfigError, OvenError
from oven_core.mesh.actuator_values import clip
from oven_core.protocol import names
from oven_core.protocol.graph_requests import PartTaken, RequestPart, TokenPriorRequest
from oven_core.security.credentials import Credentials
from oven_kg.service import token_prior_process
from oven_kg.service.endpoints import PriorService, load_prior_service, parse
from oven_kg.service.token_prior_process import BUILT_IN, GraphPaths

log = logging.getLogger("oven.kg")

NAME: Final = "oven-kg"
VERSION: Final = "1.0.0"
"""Version of the endpoints. The graph's version is its hash."""
QUEUE: Final = "kg"
MAX_REFERENCE_BYTES: Final = 4096
"""Maximum size of a request that refers to an upload. Parsing a longer request would delay other endpoints."""
MAX_ANSWER_BYTES: Final = 1_000_000
"""Maximum size of an answer. A message on the bus, with its headers, has at most 1 MiB."""

Handler: TypeAlias = Callable[[bytes], Awaitable[bytes]]


def main(args: list[str]) -> int:
    serve(args, prog_name="kg")
    return 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--large",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A `kg import` folder for query, curriculum and token_prior.",
)
def serve(file: Path | None, large: Path | None) -> None:
    """Answer requests on the bus until the process is stopped. FILE replaces the built-in graph."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    credentials = Credentials.from_environment()
    prior = load_prior_service(file, large=large)
    asyncio.run(_run_until_stopped(prior, os.environ["OVEN_URL"], credentials, GraphPaths(file, large)))


async def _run_until_stopped(prior: PriorService, url: str, credentials: Credentials | None, paths: GraphPaths) -> None:
    stop = asyncio.Event()
    on_termination(stop.set)
    async with (
        Bus.connect(url, credentials, name="kg", timeout_s=PATIENT_CONNECT_TIMEOUT_S) as bus,
        run_service(bus, prior, paths),
    ):
        graph = prior.graph
        log.info("graph %s, %d nodes, %d edges", graph.sha[:12], len(graph.nodes), len(graph.edges))
        if prior.large is not None:
            arrays = prior.large.arrays
            log.info("large graph %s, %d nodes, %d edges", arrays.sha[:12], arrays.nodes, arrays.edges)
        await stop.wait()


@contextlib.asynccontextmanager
async def run_service(bus: Bus, prior: PriorService, paths: GraphPaths = BUILT_IN) -> AsyncIterator[None]:
    """Answer requests within the context, even after the server restarts. `paths` are the files from which the graphs
    of `prior` were read."""
    large_sha = {"large": prior.large.sha} if prior.large else {}
    config = ServiceConfig(
        name=NAME, version=VERSION, description="Causes and remedies in training, with sources",
        metadata={"graph": prior.graph.sha, **large_sha}, queue_group=QUEUE,
    )  # fmt: skip
    service = await add_service(bus.client, config)
    with ThreadPoolExecutor(1, "oven-kg-large") as executor:
        for endpoint, handler in _create_handlers(prior, paths, executor).items():
            await service.add_endpoint(name=endpoint, subject=names.kg(endpoint), handler=_reply_with(handler))
        await bus.flush()
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the server may be gone
                async with asyncio.timeout(2):
                    await service.stop()


def _create_handlers(prior: PriorService, paths: GraphPaths, executor: Executor) -> Mapping[str, Handler]:
    """Return the handler of each endpoint. The small graph answers on the event loop. A large graph answers in
    `executor`, because some answers take milliseconds, mostly in numpy, which releases the GIL. Token scores are
    computed in a separate process."""
    uploads = Uploads()

    def answer_on_loop(endpoint: str) -> Handler:
        async def handle(request: bytes) -> bytes:
            return prior(endpoint, request) or b""

        return handle

    def answer_in_thread(endpoint: str) -> Handler:
        async def handle(request: bytes) -> bytes:
            answer = await asyncio.get_running_loop().run_in_executor(executor, prior, endpoint, request)
            return answer or b""

        return handle

    async def upload(request: bytes) -> bytes:
        return uploads.add(parse(RequestPart, request), asyncio.get_running_loop().time()).wire()

    async def token_prior(request: bytes) -> bytes:
        upload_id = parse(TokenPriorRequest, request).upload if len(request) < MAX_REFERENCE_BYTES else ""
        full_request = uploads.pop(upload_id) if upload_id else request
        return await token_prior_process.answer(full_request, paths, compressed=bool(upload_id))

    large = prior.large.endpoints if prior.large else {}
    handlers = {name: answer_in_thread(name) if name in large else answer_on_loop(name) for name in prior.endpoints}
    return handlers | {"token_prior": token_prior, "upload": upload}


def _reply_with(handler: Handler) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        reply = reply_subject(request)
        if not reply.startswith("_INBOX_."):
            log.warning("ignored a request on %s with the reply subject %r", request.subject, clip(reply, 120))
            return
        try:
            answer = await handler(request.data)
        except OvenError as error:
            raise ServiceError("400", clip(str(error), 300)) from error
        if len(answer) > MAX_ANSWER_BYTES:
            raise ServiceError(
                "400", f"the answer has {len(answer)} bytes, but the limit is {MAX_ANSWER_BYTES}; request less"
            )
        await request.respond(answer)

    return handle


MAX_UPLOADS: Final = 4
"""Maximum number of concurrent uploads. A run has one learner, which sends one."""
MAX_UPLOAD_BYTES: Final = 4 * 2**20
"""Maximum compressed size of an upload. A vocabulary of 300,000 tokens has 1.5 MB."""
IDLE_S: Final = 60.0
"""Seconds without a new part after which an upload is discarded, because its sender is gone."""


@dataclass(slots=True)
class _Upload:
    """The parts of one upload so far."""

    part_count: int
    last_part_at: float
    parts: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """A store for the parts of each upload until all have arrived. All times are seconds of the same clock."""

    def __init__(self) -> None:
        self._uploads: dict[str, _Upload] = {}

    def add(self, part: RequestPart, now: float) -> PartTaken:
        """Store a part. A repeated part replaces the earlier one."""
        self._uploads = {id_: upload for id_, upload in self._uploads.items() if now - upload.last_part_at <= IDLE_S}
        upload = self._uploads.get(part.upload)
        if upload is None:
            if len(self._uploads) >= MAX_UPLOADS:
                raise ConfigError(f"{MAX_UPLOADS} uploads are already in progress; try again in {IDLE_S:g} s")
            upload = _Upload(part.parts, now)
        if part.parts != upload.part_count or part.part >= part.parts:
            raise ConfigError(
                f"part {part.part} of {part.parts} does not belong to an upload of {upload.part_count} parts; "
                "send all parts again"
            )
        try:
            data = base64.b64decode(part.data, validate=True)
        except binascii.Error:
            raise ConfigError(f"part {part.part} of upload {part.upload} is not base64; send it again") from None
        parts = {**upload.parts, part.part: data}
        if (size := sum(map(len, parts.values()))) > MAX_UPLOAD_BYTES:
            self._uploads.pop(part.upload, None)
            raise ConfigError(f"the compressed upload has {size} bytes; send at most {MAX_UPLOAD_BYTES} bytes")
        upload.parts, upload.last_part_at = parts, now
        self._uploads[part.upload] = upload
        return PartTaken(upload=part.upload, missing=upload.part_count - len(parts))

    def pop(self, upload_id: str) -> bytes:
        """Return all parts in order and forget the upload. Raises ConfigError if it is unknown or incomplete."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise ConfigError(
                f"there is no upload {upload_id[:32]!r}, or it was idle for more than {IDLE_S:g} s; send it again"
            )
        if missing_parts := sorted(set(range(upload.part_count)) - set(upload.parts)):
            raise ConfigError(f"part {missing_parts[0]} of upload {upload_id} is missing; send it, then try again")
        del self._uploads[upload_id]
        return b"".join(upload.parts[number] for number in range(upload.part_count))
