"""Reader of a run's log: from `history` of a stack that is up, else log.jsonl, else the store."""

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
    judge: Callable[[Event], Event] | None = None,
    tell: Callable[[str], object] = warn,
) -> AsyncGenerator[Event]:
    """Every event so far, judged by the run's keys or as the caller says. `exact` asks the log itself even while the
    stack is up. `until` ends it at the first observation beyond that tick. `tell` hears what is wrong with the log."""
    judge = judge or Keyring(folder.pin()).verify
    async with contextlib.aclosing(entries(folder, exact=exact, tell=tell)) as log:
        async for entry in log:
            event = judge(entry)
            if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                return
            yield event


async def entries(
    folder: RunFolder, *, exact: bool = False, tell: Callable[[str], object] = warn
) -> AsyncGenerator[Event]:
    """The same unjudged."""
    if not folder.locked():
        await log_recovery.recover(folder, tell)
        for event in exported(folder):
            yield event
        return
    last = 0
    if not exact:
        with contextlib.suppress(BusError):  # no mesh answers; the log is there all the same
            async with connected(folder, "monitor") as bus, contextlib.aclosing(batches(bus, folder.run)) as answers:
                async for batch in answers:
                    for event in batch:
                        yield event
                        last = event.seq
            return
    async with contextlib.aclosing(stored(folder, last)) as log:
        async for event in log:
            yield event


async def whole_log(
    folder: RunFolder, *, exact: bool = False, check: bool = True, tell: Callable[[str], object] = warn
) -> list[Event]:
    """All of `events` in one list. Without `check` a signature need only be there."""
    judge = Keyring(folder.pin(), check=check).verify
    return [event async for event in events(folder, exact=exact, judge=judge, tell=tell)]
