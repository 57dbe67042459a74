"""Rows into a run's folder: the log that an attached learner would have left, unsigned, in `observe`.

A row is measured once and kept on disk until the last has been read, because RunStarted stands first in a log and names
every metric. So memory does not grow with the number of steps.

A training that was resumed logs some steps twice. A row that measures again what was measured at its step or a later
one begins a new incarnation, as the learner's restart did; one that brings what was missing (a late evaluation) does
not: it stands at its own step, out of order.
"""

from __future__ import annotations

import marshal
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import IO

from oven_controller.events import Event
from oven_controller.home import IMPORTED, RunFolder, whole
from oven_controller.importing.rows import Row, gauge
from oven_controller.mesh.identity import code_hash
from oven_controller.messages import ActuatorSpec, Horizon, LearnerMessage, Observation, RunEnded, RunStarted
from oven_controller.names import Subjects
from oven_controller.rules import Rules

SCALE = ActuatorSpec(
    name="optimizer.lr_scale",
    kind="scalar",
    scale="log",
    unit="× the schedule",
    low=0.1,
    high=3.0,
    value=1.0,
    risky=True,
)
"""What `attach` announces first, within its bounds. An agent may vote on it; nothing can turn it any more."""


_LENGTH = struct.Struct("<I")


@dataclass
class Written:
    """What became of a source."""

    observations: int = 0
    first_step: int = 0
    last_step: int = 0
    incarnations: int = 0
    timed: int = 0
    """Rows with a time of their own; the others stand at the time of the file's last change."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Name → how many rows have it."""
    max_steps: int = 0
    completed: bool = True


def write(
    folder: RunFolder,
    rows: Iterable[Row],
    *,
    max_steps: int | None = None,
    reached: int | None = None,
    changed: float,
    detail: str,
) -> Written:
    """`max_steps` and `reached` are what the source says of its length, beside what its rows say. `changed`: seconds
    since the epoch, for rows without a time. `detail` goes into RunEnded. Whoever made the folder removes it when this
    raises, or when there was not one row."""
    with tempfile.TemporaryFile() as spool:
        found = _spool(rows, spool)
        if not found.observations:
            return found
        found.completed = max_steps is None or max(found.max_steps, reached or 0) >= max_steps
        found.max_steps = max(found.max_steps, max_steps or 0)
        spool.seek(0)
        with whole(folder.export) as out:
            out.writelines(f"{line}\n" for line in _lines(folder.run, _spooled(spool), found, changed, detail))
    return found


def _spool(rows: Iterable[Row], spool: IO[bytes]) -> Written:
    found = Written()
    newest: dict[str, int] = {}  # metric → step at which this incarnation measured it last
    furthest = -1
    for row in rows:
        again = row.step <= furthest and any(newest.get(name, -1) >= row.step for name in row.metrics)
        if again or not found.observations:
            found.incarnations += 1
            newest.clear()
            furthest = -1
        if not found.observations:
            found.first_step = row.step
        newest.update(dict.fromkeys(row.metrics, row.step))
        furthest = max(furthest, row.step)
        found.metrics.update(row.metrics.keys())
        found.observations += 1
        found.last_step = row.step
        found.max_steps = max(found.max_steps, row.step)
        found.timed += row.time is not None
        data = marshal.dumps((found.incarnations, *row))
        spool.write(_LENGTH.pack(len(data)) + data)
    return found


def _spooled(spool: IO[bytes]) -> Iterator[tuple[int, Row]]:
    while head := spool.read(_LENGTH.size):
        incarnation, *row = marshal.loads(spool.read(*_LENGTH.unpack(head)))
        yield incarnation, Row(*row)


def _lines(run: str, rows: Iterable[tuple[int, Row]], found: Written, changed: float, detail: str) -> Iterator[str]:
    """The log's lines, in order."""
    on, seq, tick, n, current = Subjects(run), 0, 0, 0, 0
    at = datetime.fromtimestamp(changed, UTC)
    ended = at

    def line(subject: str, message: LearnerMessage, at: datetime) -> str:
        nonlocal seq, n
        seq, n = seq + 1, n + 1
        identity = f"{message.incarnation}-{message.n}"
        assert isinstance(message, RunStarted | RunEnded | Observation)
        return Event(seq, subject, message.wire(), at, message, message_id=identity).line()

    for incarnation, row in rows:
        at = _when(row.time, changed)
        if incarnation != current:
            current, n = incarnation, 0
            yield line(on.run, _started(incarnation, tick, row.step, found), at)
        tick += 1
        seen = Observation(
            incarnation=incarnation,
            n=n,
            tick=tick,
            step=row.step,
            progress=row.step / found.max_steps if found.max_steps else 0.0,
            metrics=row.metrics,
        )
        yield line(on.observation, seen, at)
        ended = at
    reason = "completed" if found.completed else "stopped"
    last = RunEnded.model_validate(
        {"incarnation": current, "n": n, "reason": reason, "detail": detail, "tick": tick, "step": found.last_step}
    )
    yield line(on.run, last, ended)


def _started(incarnation: int, tick: int, step: int, found: Written) -> RunStarted:
    return RunStarted(
        incarnation=incarnation,
        n=0,
        recipe=IMPORTED,
        tick=tick,
        step=max(0, step - 1) if tick else 0,
        horizon=Horizon(max_steps=found.max_steps or None),
        actuators=(SCALE,) if "learning_rate" in found.metrics else (),
        metrics=tuple(gauge(name) for name in sorted(found.metrics)),
        rules=Rules(autonomy="observe"),
        mesh_code=code_hash(),
        versions=_versions(),
    )


def _when(time: float | None, changed: float) -> datetime:
    try:
        return datetime.fromtimestamp(changed if time is None else time, UTC)
    except (OverflowError, ValueError, OSError):  # a column of that name that is no time
        return datetime.fromtimestamp(changed, UTC)


def _versions() -> dict[str, str]:
    try:
        return {"oven-controller": version("oven-controller")}
    except PackageNotFoundError:
        return {}
