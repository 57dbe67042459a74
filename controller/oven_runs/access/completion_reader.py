"""Read a run's sampled completions: the stored groups, and new groups as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import stored_batch
from oven_core.errors import BusError, ConfigError
from oven_core.protocol.completion_messages import CompletionsBatch, CompletionsRequest, StoredGroup
from oven_core.protocol.names import Subjects
from oven_runs.access.log_sources import connected, open_store
from oven_runs.access.run_access import RunAccess, warn
from oven_runs.access.run_finder import local_folder

ANSWER_S = 5.0
Ask = Callable[[int, int], Awaitable[CompletionsBatch]]
"""Fetches the newest groups after a sequence: (sequence, limit) → batch."""


async def newest(access: RunAccess, most: int) -> list[StoredGroup]:
    """Return the newest groups of a run, up or down, oldest first. Raises BusError; ConfigError if none are stored.

    A run that is down is read by starting its server. Raises StoreInUseError if it is up after all.
    """
    run = access.run
    if access.up():
        async with access.connected("monitor") as bus:
            return [group async for groups in _batches(_mesh(bus, run), run, 0, most) for group in groups]
    folder = local_folder(access, "reading its completions")
    if not folder.info().embedded:
        async with connected(folder, "admin") as bus:
            return [group async for groups in _batches(_store(bus, run), run, 0, most) for group in groups]
    if not folder.stored():
        raise ConfigError(f"run {run!r} has no store any more, and completions are nowhere else")
    with folder.hold(reading=True):
        async with open_store(folder) as bus:
            return [group async for groups in _batches(_store(bus, run), run, 0, most) for group in groups]


async def followed(
    access: RunAccess, most: int, tell: Callable[[str], object] = warn
) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest groups, and then new ones until the stack is down.

    Waits for a server or mesh that restarts, and reports it through `tell`. Raises RefusedError; ConfigError if none
    are stored.
    """
    last_seq = 0

    async def listen(bus: Bus, run: str, wake: asyncio.Event) -> None:
        async def hear(_message: object) -> None:
            wake.set()

        await bus.subscribe(Subjects(run).completions, hear)
        await bus.flush()

    async def fetch(bus: Bus) -> AsyncGenerator[list[StoredGroup]]:
        nonlocal last_seq
        async for groups in _batches(_mesh(bus, access.run), access.run, last_seq, most):
            yield groups
            last_seq = groups[-1].seq

    async for groups in access.polled(listen, fetch, lambda: access.is_over(False), tell):
        yield groups


def _mesh(bus: Bus, run: str) -> Ask:
    async def ask(after: int, limit: int) -> CompletionsBatch:
        request = CompletionsRequest(after=after, limit=min(limit, 256))
        reply = await bus.request(Subjects(run).stored_completions, request.wire(), ANSWER_S)
        try:
            return CompletionsBatch.model_validate_json(reply)
        except ValidationError:
            raise BusError("the reply to a request for completions is malformed") from None

    return ask


def _store(bus: Bus, run: str) -> Ask:
    return lambda after, limit: stored_batch(bus, run, after, limit)


async def _batches(ask: Ask, run: str, after: int, most: int) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest `most` groups after a sequence. Raises BusError, ConfigError if none are stored."""
    while most > 0:
        batch = await ask(after, most)
        if not batch.has_stream:
            raise ConfigError(
                f"run {run!r} stores no completions: they are off by default for your own script; start or resume it "
                "with `--set completions.every=10`"
            )
        if not batch.groups:
            return
        yield list(batch.groups)
        after, most = batch.groups[-1].seq, most - len(batch.groups)
