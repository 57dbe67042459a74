"""Read a run's sampled completions: the stored groups, and new groups as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import read_batch
from oven_core.errors import BusError, ConfigError
from oven_core.protocol.completion_messages import CompletionsBatch, CompletionsRequest, StoredGroup
from oven_core.protocol.names import Subjects
from oven_core.terminal_text import warn
from oven_runs.access.log_sources import connect, open_store
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import local_folder

REPLY_TIMEOUT_S = 5.0
FetchBatch = Callable[[int, int], Awaitable[CompletionsBatch]]
"""Fetches the newest groups after a sequence number: (sequence number, limit) → batch."""


async def newest_groups(access: RunAccess, limit: int) -> list[StoredGroup]:
    """Return the newest `limit` groups, oldest first. If the run is down, its server is started to read them. Raises
    BusError, ConfigError if the run stores no completions, and StoreInUseError if it was started in the meantime."""
    run = access.run
    if access.is_up():
        async with access.connect("monitor") as bus:
            return await _fetch_all(_fetch_from_mesh(bus, run), run, limit)
    folder = local_folder(access, "reading its completions")
    if not folder.info().embedded:
        async with connect(folder, "admin") as bus:
            return await _fetch_all(_fetch_from_store(bus, run), run, limit)
    if not folder.has_store():
        raise ConfigError(f"the store of run {run!r} was deleted, and completions are not stored anywhere else")
    with folder.hold(reading=True):
        async with open_store(folder) as bus:
            return await _fetch_all(_fetch_from_store(bus, run), run, limit)


async def follow_groups(
    access: RunAccess, limit: int, report: Callable[[str], object] = warn
) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest `limit` groups, and then new groups until the stack is down. While the server or mesh restarts,
    wait and call `report`. Raises RefusedError, and ConfigError if the run stores no completions."""
    last_seq = 0

    async def listen(bus: Bus, run: str, wake: asyncio.Event) -> None:
        async def on_message(_message: object) -> None:
            wake.set()

        await bus.subscribe(Subjects(run).completions, on_message)
        await bus.flush()

    async def fetch(bus: Bus) -> AsyncGenerator[list[StoredGroup]]:
        nonlocal last_seq
        async for groups in _fetch_batches(_fetch_from_mesh(bus, access.run), access.run, last_seq, limit):
            yield groups
            last_seq = groups[-1].seq

    async for groups in access.poll(listen, fetch, lambda: access.is_over(False), report):
        yield groups


def _fetch_from_mesh(bus: Bus, run: str) -> FetchBatch:
    async def fetch(after: int, limit: int) -> CompletionsBatch:
        request = CompletionsRequest(after=after, limit=min(limit, 256))  # more are not allowed in one request
        reply = await bus.request(Subjects(run).stored_completions, request.wire(), REPLY_TIMEOUT_S)
        try:
            return CompletionsBatch.model_validate_json(reply)
        except ValidationError:
            raise BusError("the reply to a request for completions is malformed") from None

    return fetch


def _fetch_from_store(bus: Bus, run: str) -> FetchBatch:
    return lambda after, limit: read_batch(bus, run, after, limit)


async def _fetch_all(fetch: FetchBatch, run: str, limit: int) -> list[StoredGroup]:
    return [group async for groups in _fetch_batches(fetch, run, 0, limit) for group in groups]


async def _fetch_batches(fetch: FetchBatch, run: str, after: int, limit: int) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest `limit` groups after sequence number `after`, in batches. Raises BusError and ConfigError."""
    while limit > 0:
        batch = await fetch(after, limit)
        if not batch.has_stream:
            raise ConfigError(
                f"run {run!r} stores no completions: they are off by default for your own script; start or resume it "
                "with `--set completions.every=10`"
            )
        if not batch.groups:
            return
        yield list(batch.groups)
        after, limit = batch.groups[-1].seq, limit - len(batch.groups)
