"""The row of a run on another machine in the list of runs, from its monitor's view and later events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oven_core.errors import OvenError, reason
from oven_runs.access.run_access import RunAccess
from oven_runs.log.run_row import RunRow, summarized
from oven_tui.model.monitor_view import MonitorView

LOOK_S = 2.0
"""Seconds between two requests for new events."""


class Elsewhere:
    """One run that is reached by an address."""

    def __init__(self, access: RunAccess, view: MonitorView) -> None:
        self.access, self._view = access, view
        self._fault = ""

    async def follow(self, changed: Callable[[], None]) -> None:
        """Request new events until cancelled, and call `changed` when there were some."""
        from nats.errors import Error as NatsError

        from oven_runs.access.log_sources import batches

        while True:
            try:
                async with self.access.connected("monitor") as bus:
                    keyring = await self.access.live_keyring(bus)
                    while True:
                        async for events in batches(bus, self.access.run, self._view.run.seq):
                            for event in events:
                                self._view.feed(keyring.verify(event))
                        self._fault = ""
                        changed()
                        await asyncio.sleep(LOOK_S)
            except (OvenError, NatsError, OSError) as error:
                self._fault = reason(error)
                changed()
                await asyncio.sleep(LOOK_S)

    def row(self) -> RunRow:
        """Return the row for the list."""
        run = self._view.run
        row = RunRow(
            self.access.run,
            recipe=run.started.recipe if run.started else "",
            status=run.ended.reason if run.ended else "running",
            pace_s=self._view.pace_s or None,
            fault=self._fault,
            location=self.access.location,
            whole=True,
        )
        return summarized(row, run)
