"""The row of a run on another machine in the list of runs, from its monitor's view and later events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from oven_core.errors import OvenError, reason
from oven_runs.access.run_access import RunAccess
from oven_runs.log.run_row import RunRow
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
        target = run.target() or ""
        ended = run.ended
        done = sum(run.receipts.get(status, 0) for status in ("applied", "noop"))
        return RunRow(
            self.access.run,
            recipe=run.started.recipe if run.started else "",
            status=ended.reason if ended else "running",
            step=run.step if run.started else None,
            max_steps=run.started.horizon.max_steps if run.started else None,
            progress=run.progress,
            target=target,
            first=_finite(run.first.get(target)),
            now=_finite(run.metrics.get(target)),
            adopted=run.adopted,
            rejected=run.rejected,
            advised=tuple(d.id for d in run.advised.values() if not run.lapsed(d)),
            held=run.held,
            ended=(f"{ended.reason}: {ended.detail}" if ended.detail else ended.reason) if ended else "",
            malformed=run.malformed,
            not_applied=sum(run.receipts.values()) - done,
            pace_s=self._view.pace_s or None,
            last=run.last_time.isoformat() if run.last_time else "",
            fault=self._fault,
            location=self.access.location,
            whole=True,
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
