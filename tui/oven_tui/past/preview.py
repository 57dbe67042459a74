"""A preview of a long log: its beginning, its end, and evenly spaced observations in between. Nothing is verified.

It takes the same fraction of a second for any length. Decisions in the middle are missing, so the view's counts are
wrong; its `preview` flag says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView

PLACES = 1500
"""Positions with OBSERVATIONS each: three for every dot of a chart on 200 columns."""
OBSERVATIONS = 3
WINDOW = 8 << 10
"""Bytes to read at a position: several observations of 30 metrics."""
HEAD = 1 << 20
"""Bytes to search for the run's start and its agents' joining; the search ends with the first observations."""
HEAD_EVENTS = 400
TAIL = 1 << 20
"""Bytes at the end that are folded completely: the newest thousand events or two."""
_MARK = b'"type": "Observation"'


def preview(folder: RunFolder) -> MonitorView:
    """Return the preview. Raises OSError."""
    view = MonitorView()
    view.preview = True
    keyring = Keyring(folder.pin(), check=False)
    for line in _lines(folder):
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # the reader behind says what is wrong with it
        view.feed(keyring.verify(event))
    return view


def _lines(folder: RunFolder) -> Iterator[bytes]:
    with folder.export.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(min(size, HEAD)).splitlines(keepends=True)[:HEAD_EVENTS]
        yield from head
        first, last = sum(map(len, head)), max(0, size - TAIL)
        for number in range(PLACES):
            position = first + (last - first) * number // PLACES
            if position >= last:
                break
            file.seek(position)
            lines = file.read(WINDOW).splitlines()[1:-1]
            yield from [line for line in lines if _MARK in line[:600]][:OBSERVATIONS]
        file.seek(last)
        yield from file.read().splitlines()[1 if last else 0 :]
