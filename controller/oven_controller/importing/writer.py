"""Writer of the run that is made of rows: the unsigned log of an attached learner, in `observe`.

A row is measured once and kept on disk until the last has been read, because RunStarted stands first in a log and names
every metric. So memory does not grow with the number of steps.

A training that was resumed logs some steps twice. A row that measures again what was measured at a later step begins a
new incarnation, as the learner's restart did. One that brings what was missing (a late evaluation) does not: it stands
at its own step, out of order. Nor does one that says the newest step once more, as a second file of the same training
may that continues where the first ended.
"""

from __future__ import annotations

import marshal
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import IO

from oven_controller.importing.declared_knobs import Knob, announced
from oven_controller.importing.rows import Row, gauge
from oven_core.files import atomic_file
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import ActuatorSpec, Horizon, Observation, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_runs.home.run_folder import IMPORTED, RunFolder

_LENGTH = struct.Struct("<I")


@dataclass
class Written:
    """What was read from a source."""

    observations: int = 0
    first_step: int = 0
    last_step: int = 0
    incarnations: int = 0
    timed: int = 0
    """Rows with their own time; the others stand at the time of the file's last change."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Name → how many rows have it."""
    max_steps: int = 0
    completed: bool = True


class Rows:
    """The rows of one source, read to their end and kept on disk: what is said of them all, and then their messages, as
    often as they are asked for."""

    def __init__(
        self, rows: Iterable[Row], *, max_steps: int | None = None, reached: int | None = None, changed: float
    ) -> None:
        """`max_steps` and `reached` are what the source says of its length, beside what its rows say. `changed`:
        seconds since the epoch, for rows without a time."""
        self._changed = changed
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            self.found = found = _spool(rows, self._spool)
        except BaseException:
            self.close()
            raise
        found.completed = max_steps is None or max(found.max_steps, reached or 0) >= max_steps
        found.max_steps = max(found.max_steps, max_steps or 0)

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._spool.close()

    def events(self, run: str, knobs: Iterable[Knob] = (), detail: str = "") -> Iterator[Event]:
        """The log of a run of that name: one call's at a time. `detail` goes into RunEnded. The events carry messages
        and no bytes; `log_line` has them as a log has."""
        self._spool.seek(0)
        actuators = announced(knobs, self.found.metrics)
        return _events(run, _spooled(self._spool), self.found, self._changed, actuators, detail)


def log_line(event: Event) -> str:
    """The event's line in log.jsonl."""
    assert not isinstance(event.body, Malformed)
    return replace(event, data=event.body.wire()).line()


def write(folder: RunFolder, rows: Rows, knobs: Iterable[Knob] = (), detail: str = "") -> None:
    """Their log, in the run's folder. Anyone who made the folder removes it when this raises."""
    with atomic_file(folder.export) as out:
        out.writelines(log_line(event).encode() + b"\n" for event in rows.events(folder.run, knobs, detail))


def _spool(rows: Iterable[Row], spool: IO[bytes]) -> Written:
    found = Written()
    newest: dict[str, int] = {}  # metric → step at which this incarnation measured it last
    furthest = -1
    for row in rows:
        again = row.step < furthest and any(newest.get(name, -1) > row.step for name in row.metrics)
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


def _events(
    run: str,
    rows: Iterable[tuple[int, Row]],
    found: Written,
    changed: float,
    actuators: tuple[ActuatorSpec, ...],
    detail: str,
) -> Iterator[Event]:
    """In the log's order."""
    on, seq, tick, n, current = Subjects(run), 0, 0, 0, 0
    ended = datetime.fromtimestamp(changed, UTC)

    def entry(subject: str, message: RunStarted | RunEnded | Observation, at: datetime) -> Event:
        nonlocal seq, n
        seq, n = seq + 1, n + 1
        return Event(seq, subject, b"", at, message, message_id=f"{message.incarnation}-{message.n}")

    for incarnation, row in rows:
        at = _when(row.time, changed)
        if incarnation != current:
            current, n = incarnation, 0
            yield entry(on.run, _started(incarnation, tick, row.step, found, actuators), at)
        tick += 1
        seen = Observation(
            incarnation=incarnation,
            n=n,
            tick=tick,
            step=row.step,
            progress=row.step / found.max_steps if found.max_steps else 0.0,
            metrics=row.metrics,
        )
        yield entry(on.observation, seen, at)
        ended = at
    last = RunEnded(
        incarnation=current,
        n=n,
        reason="completed" if found.completed else "stopped",
        detail=detail,
        tick=tick,
        step=found.last_step,
    )
    yield entry(on.run, last, ended)


def _started(incarnation: int, tick: int, step: int, found: Written, actuators: tuple[ActuatorSpec, ...]) -> RunStarted:
    return RunStarted(
        incarnation=incarnation,
        n=0,
        recipe=IMPORTED,
        tick=tick,
        step=max(0, step - 1) if tick else 0,
        horizon=Horizon(max_steps=found.max_steps or None),
        actuators=actuators,
        metrics=tuple(gauge(name) for name in sorted(found.metrics)),
        rules=Rules(autonomy="observe"),
        mesh_code=mesh_code_hash(),
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
