"""Finished runs on disk: a folder with a log.jsonl made of events, as `up` leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from oven_core.protocol.events import Event
from oven_runs.home.run_folder import Home, RunFolder


def write_run(home: Home, run: str, events: Iterable[Event], **info: Any) -> RunFolder:
    """The run's folder, with these events under its name and numbered anew; unsigned, as the events are. `info`: fields
    of run.json."""
    folder = home.create(run, "grpo")
    with folder.export.open("w") as out:
        for seq, event in enumerate(events, 1):
            kind = event.subject.split(".", 2)[2]
            out.write(replace(event, seq=seq, subject=f"oven.{run}.{kind}").line() + "\n")
    folder.write_info(replace(folder.info(), **{"ended": "completed", **info}))
    return folder
