"""Read a run as rows for pandas, polars and others, which are not imported here.

import pandas as pd
from oven_runs.access.table_rows import observations

frame = pd.DataFrame(observations("grpo-1121-0231"))
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oven_runs.access.run_finder import find_run
from oven_runs.log.export_rows import Row, Rows


def observations(run: str | None = None) -> list[dict[str, Any]]:
    """Return one row per observation: seq, time, tick, step, and its metrics. A knob's value is in the rows in which
    the knob was announced or changed, as `knob/NAME`. Without `run`, read the running run, or the newest.

    Raises OvenError."""
    return [row.position() | dict(row.values) for row in _rows(run) if row.values]


def events(run: str | None = None) -> list[dict[str, Any]]:
    """Return one row per decision, receipt, outcome, finding, command, start and end. The columns are seq, time, tick,
    step, kind, subject, author, status, before, after, and text. `run` as in `observations`. Raises OvenError."""
    return [row.event_fields() for row in _rows(run) if row.event is not None]


def _rows(run: str | None) -> list[Row]:
    async def read() -> list[Row]:
        rows = Rows()
        return [row async for event in find_run(run).events() if (row := rows.convert(event)) is not None]

    with ThreadPoolExecutor(1) as thread:  # in a notebook, this thread already runs an event loop
        return thread.submit(asyncio.run, read()).result()
