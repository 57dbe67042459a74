"""Write imported rows as the log of a run. It looks like the unsigned log of a learner with the autonomy `observe`.

RunStarted comes first in a log and names every metric. Therefore the rows are stored on disk until the source is fully
read. Memory use does not grow with the number of steps.

A resumed training run logs some steps twice. Therefore a row starts a new incarnation, like a restart of the learner,
if one of its metrics was already measured at a later step. A late evaluation does not, because its metrics have no
later measurement. A repetition of the newest step does not either, because a second file may continue the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from oven_controller.importing.declared_knobs import Knob, announced_actuators
from oven_controller.importing.rows import Row
from oven_controller.importing.spool import Spool
from oven_core.files import atomic_file
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import ActuatorSpec, Horizon, Observation, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_runs.home.run_folder import IMPORTED, RunFolder
from oven_runs.metrics.metric_names import announcement_order, metric_spec

EPOCH: Final = "epoch"
"""The metric with the pass over the training data. It is not counted as a metric of the source."""


@dataclass
class Totals:
    """Totals over all rows of a source."""

    observations: int = 0
    first_step: int = 0
    last_step: int = 0
    incarnations: int = 0
    rows_with_time: int = 0
    """Number of rows with their own time. The others get the file's modification time."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Number of rows per metric."""
    negative: set[str] = field(default_factory=set)
    """Columns with values below 0."""
    has_epochs: bool = False
    """Whether the source counts passes over the training data next to steps."""
    max_steps: int = 0
    """The highest step, or the planned number of steps if that is larger."""
    completed: bool = True
    """Whether the run reached its planned number of steps. True if that number is unknown."""


class StoredRows:
    """The rows of one source, stored on disk, with their totals. Their events can be generated repeatedly."""

    def __init__(
        self,
        rows: Iterable[Row],
        modified_at: float,
        max_steps: int | None = None,
        completed_steps: int | None = None,
        choose_names: Callable[[Mapping[str, int], Collection[str]], Mapping[str, str]] | None = None,
    ) -> None:
        """Read all rows. `modified_at` is the time for rows without their own, in seconds since 1970. `max_steps` is
        the planned number of steps, and `completed_steps` the number that the source reports, if known.
        `choose_names` returns the metric names of the columns. It receives the number of values in each, and the
        columns with negative values."""
        self._modified_at = modified_at
        self._spool = Spool()
        try:
            self.totals = totals = _store(rows, self._spool)
        except BaseException:
            self.close()
            raise
        self._names = (
            choose_names(totals.metrics, totals.negative) if choose_names else {name: name for name in totals.metrics}
        )
        totals.metrics = Counter({name: totals.metrics[column] for column, name in self._names.items()})
        totals.completed = max_steps is None or max(totals.max_steps, completed_steps or 0) >= max_steps
        totals.max_steps = max(totals.max_steps, max_steps or 0)

    def __enter__(self) -> StoredRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._spool.close()

    def events(self, run: str, knobs: Iterable[Knob] = (), detail: str = "") -> Iterator[Event]:
        """Return the events of the run's log. Use only one such iterator at a time. `detail` is a field of RunEnded.
        Each event has a message but no encoded bytes; `log_line` encodes it."""
        actuators = announced_actuators(knobs, self.totals.metrics)
        return _make_events(run, self._named_rows(), self.totals, self._modified_at, actuators, detail)

    def _named_rows(self) -> Iterator[tuple[int, Row]]:
        for incarnation, step, values, time, epoch in self._spool:
            metrics = {self._names[column]: value for column, value in values.items()}
            if epoch is not None:
                metrics.setdefault(EPOCH, epoch)
            yield incarnation, Row(step, metrics, time)


def log_line(event: Event) -> str:
    """Return the event's line in log.jsonl."""
    assert not isinstance(event.body, Malformed)
    return replace(event, data=event.body.wire()).line()


def write_log(folder: RunFolder, rows: StoredRows, knobs: Iterable[Knob] = (), detail: str = "") -> None:
    """Write the log into the run's folder. If this raises, the caller removes the folder."""
    with atomic_file(folder.export) as out:
        out.writelines(log_line(event).encode() + b"\n" for event in rows.events(folder.run, knobs, detail))


def _store(rows: Iterable[Row], spool: Spool) -> Totals:
    """Write each row with the number of its incarnation, and return the totals."""
    totals = Totals()
    last_steps: dict[str, int] = {}  # metric → step of its last measurement in this incarnation
    for row in rows:
        goes_back = any(last_steps.get(name, -1) > row.step for name in row.metrics)
        if goes_back or not totals.observations:
            totals.incarnations += 1
            last_steps.clear()
        if not totals.observations:
            totals.first_step = row.step
        if last_steps.get(EPOCH, -1) > row.step:
            row = row._replace(epoch=None)  # a late evaluation
        last_steps.update(dict.fromkeys(row.metrics, row.step))
        last_steps[EPOCH] = max(row.step, last_steps.get(EPOCH, -1))
        totals.metrics.update(row.metrics.keys())
        totals.negative.update(name for name, value in row.metrics.items() if value < 0)
        totals.observations += 1
        totals.last_step = row.step
        totals.max_steps = max(totals.max_steps, row.step)
        totals.has_epochs = totals.has_epochs or row.epoch is not None
        if row.time is not None:
            totals.rows_with_time += 1
        spool.add((totals.incarnations, *row))
    return totals


def _make_events(
    run: str,
    rows: Iterable[tuple[int, Row]],
    totals: Totals,
    modified_at: float,
    actuators: tuple[ActuatorSpec, ...],
    detail: str,
) -> Iterator[Event]:
    subjects = Subjects(run)
    seq = tick = current_incarnation = 0
    n = 0  # number of the next message in its incarnation
    last_time = datetime.fromtimestamp(modified_at, UTC)

    def make_event(subject: str, message: RunStarted | RunEnded | Observation, time: datetime) -> Event:
        nonlocal seq, n
        seq, n = seq + 1, n + 1
        return Event(seq, subject, b"", time, message, message_id=f"{message.incarnation}-{message.n}")

    for incarnation, row in rows:
        time = _to_datetime(row.time, modified_at)
        if incarnation != current_incarnation:
            current_incarnation, n = incarnation, 0
            yield make_event(subjects.run, _make_start(incarnation, tick, row.step, totals, actuators), time)
        tick += 1
        progress = row.step / totals.max_steps if totals.max_steps else 0.0
        observation = Observation(
            incarnation=incarnation, n=n, tick=tick, step=row.step, progress=progress, metrics=row.metrics
        )
        yield make_event(subjects.observation, observation, time)
        last_time = time
    end = RunEnded(
        incarnation=current_incarnation,
        n=n,
        reason="completed" if totals.completed else "stopped",
        detail=detail,
        tick=tick,
        step=totals.last_step,
    )
    yield make_event(subjects.run, end, last_time)


def _make_start(
    incarnation: int, tick: int, step: int, totals: Totals, actuators: tuple[ActuatorSpec, ...]
) -> RunStarted:
    names = totals.metrics.keys() | ({EPOCH} if totals.has_epochs else set())
    return RunStarted(
        incarnation=incarnation,
        n=0,
        recipe=IMPORTED,
        tick=tick,
        step=max(0, step - 1) if tick else 0,  # the step before the first row; 0 in the first incarnation
        horizon=Horizon(max_steps=totals.max_steps or None),
        actuators=actuators,
        metrics=tuple(metric_spec(name) for name in sorted(names, key=announcement_order)),
        rules=Rules(autonomy="observe"),
        mesh_code=mesh_code_hash(),
        versions=_find_versions(),
    )


def _to_datetime(time: float | None, modified_at: float) -> datetime:
    try:
        return datetime.fromtimestamp(modified_at if time is None else time, UTC)
    except (OverflowError, ValueError, OSError):  # the column does not contain times
        return datetime.fromtimestamp(modified_at, UTC)


def _find_versions() -> dict[str, str]:
    try:
        return {"oven-controller": version("oven-controller")}
    except PackageNotFoundError:
        return {}
