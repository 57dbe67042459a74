"""Reader of a local run's log: from `history` while the stack is up, else from log.jsonl or the store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from oven_core.errors import BusError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_core.security.signing import Keyring
from oven_runs.access import log_recovery
from oven_runs.access.log_sources import batches, connected, exported, stored
from oven_runs.access.run_access import warn
from oven_runs.home.run_folder import RunFolder


async def events(
    folder: RunFolder,
    *,
    exact: bool = False,
    until: int | None = None,
    verify: Callable[[Event], Event] | None = None,
    tell: Callable[[str], object] = warn,
) -> AsyncGenerator[Event]:
    """Yield every event so far, verified by the run's keys or by `verify`.

    `exact` reads the log itself even while the stack is up. `until` stops before the first observation after that tick.
    `tell` receives warnings about the log.
    """
    verify = verify or Keyring(folder.pin()).verify
    async with contextlib.aclosing(raw_events(folder, exact=exact, tell=tell)) as log:
        async for raw in log:
            event = verify(raw)
            if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                return
            yield event


async def raw_events(
    folder: RunFolder, *, exact: bool = False, tell: Callable[[str], object] = warn
) -> AsyncGenerator[Event]:
    """Yield the same events without verifying them."""
    if not folder.locked():
        await log_recovery.recover(folder, tell)
        for event in exported(folder):
            yield event
        return
    last_seq = 0
    if not exact:
        with contextlib.suppress(BusError):  # no mesh answers, but the log is still there
            async with connected(folder, "monitor") as bus, contextlib.aclosing(batches(bus, folder.run)) as answers:
                async for batch in answers:
                    for event in batch:
                        yield event
                        last_seq = event.seq
            return
    async with contextlib.aclosing(stored(folder, last_seq)) as log:
        async for event in log:
            yield event


async def whole_log(
    folder: RunFolder, *, exact: bool = False, check: bool = True, tell: Callable[[str], object] = warn
) -> list[Event]:
    """Return all of `events` as a list. Without `check` a signature only has to be present."""
    verify = Keyring(folder.pin(), check=check).verify
    return [event async for event in events(folder, exact=exact, verify=verify, tell=tell)]
