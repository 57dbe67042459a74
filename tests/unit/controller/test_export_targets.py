"""Export recorded runs to the real packages of each target, with interruptions, and read the rows back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.exported_run import record_run

from oven_controller.exporting import export_state
from oven_controller.exporting.exporter import run_exporter
from oven_controller.exporting.exporter_process import locked_target
from oven_controller.exporting.target import TARGETS, Target
from oven_controller.exporting.to_wandb import read_records
from oven_core.errors import ConfigError, ProcessError
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.export_rows import Row, Rows

STEPS = 60
Contents = tuple[Counter[tuple[str, int, float]], Counter[str]]
"""Stored values as (metric, step, value), and stored events by their kind."""


class KilledError(ConfigError):
    """Stands for the death of the exporter after the target stored rows, but before the position was saved."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return record_run(Home(tmp_path), "sorts", STEPS)


def export(run: RunFolder, name: str, prepare: Callable[[Target], object] = lambda target: None) -> int:
    with locked_target(run, name) as target:
        target.max_rows = 25  # type: ignore[misc]
        prepare(target)
        return asyncio.run(run_exporter(LocalRun(run), name, target))


def die_after(writes: int) -> Callable[[Target], None]:
    """Make the exporter die after the target has stored the rows of this many writes."""

    def prepare(target: Target) -> None:
        write, counts = target.write, iter(range(1, writes + 1))

        def write_and_die(rows: Sequence[Row], events: Sequence[Row]) -> str:
            mark = write(rows, events)
            if next(counts) == writes:
                target.close(False)
                raise KilledError("killed")
            return mark

        target.write = write_and_die  # type: ignore[method-assign]

    return prepare


def logged(run: RunFolder) -> Contents:
    """What the target should have."""
    rows = Rows()
    all_rows = [row for event in exported_events(run) if (row := rows.convert(event)) is not None]
    values = Counter((name, row.step, round(value, 4)) for row in all_rows for name, value in row.values.items())
    return values, Counter(row.event.kind for row in all_rows if row.event is not None)


def read_parquet(run: RunFolder, folder: Path) -> Contents:
    parquet = import_module("pyarrow.parquet")
    values, events = (parquet.read_table(folder / table).to_pylist() for table in ("observations", "events"))
    assert {event["time"].tzinfo is not None for event in events} == {True}
    return (
        Counter((row["metric"], row["step"], round(row["value"], 4)) for row in values),
        Counter(row["kind"] for row in events),
    )


def read_tensorboard(run: RunFolder, folder: Path) -> Contents:
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    scalars = Counter((tag, item.step, round(item.value, 4)) for tag in tags["scalars"] for item in events.Scalars(tag))
    texts = Counter(tag.split("/")[0] for tag in tags["tensors"] for _ in events.Tensors(tag))
    (decision, *_) = events.Tensors("decision/optimizer.lr_scale")
    assert b"optimizer.lr_scale 1 \xe2\x86\x92 0.5" in decision.tensor_proto.string_val[0]
    return scalars, texts


def read_trackio(run: RunFolder, folder: Path) -> Contents:
    storage = import_module("trackio.sqlite_storage").SQLiteStorage
    rows = storage.get_logs("oven", run.run)
    values = Counter(
        (name, row["step"], round(value, 4))
        for row in rows
        for name, value in row.items()
        if name not in ("step", "timestamp")
    )
    return values, Counter(alert["title"].split()[0].rstrip(":") for alert in storage.get_alerts("oven", run.run))


def read_mlflow(run: RunFolder, folder: Path) -> Contents:
    client = import_module("mlflow").MlflowClient()
    experiment = client.get_experiment_by_name("oven")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert "optimizer.lr_scale" in stored.data.tags["oven.last_decision"]
    values = Counter(
        (name, point.step, round(point.value, 4))
        for name in stored.data.metrics
        for point in client.get_metric_history(stored.info.run_id, name)
    )
    path = client.download_artifacts(stored.info.run_id, "events.json", str(folder))
    table = json.loads(Path(path).read_text())
    return values, Counter(row[table["columns"].index("kind")] for row in table["data"])


def read_wandb(run: RunFolder, folder: Path) -> Contents:
    record = import_module("wandb.proto.wandb_internal_pb2").Record()
    values, tables = Counter[tuple[str, int, float]](), list[Path]()
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in read_records(path.read_bytes()):
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            row = {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            tables += [path.parent / "files" / row["events/path"]] if "events/path" in row else []
            own = ("step", "tick", "time")
            names = [name for name in row if name not in own and not name.startswith(("_", "events/"))]
            values.update((name, row["step"], round(row[name], 4)) for name in names)
    table = json.loads(tables[-1].read_text())
    return values, Counter(row[table["columns"].index("kind")] for row in table["data"])


READERS: dict[str, Callable[[RunFolder, Path], Contents]] = {
    "mlflow": read_mlflow, "parquet": read_parquet, "tensorboard": read_tensorboard, "trackio": read_trackio,
    "wandb": read_wandb,
}  # fmt: skip


def test_every_target_has_a_test() -> None:
    assert READERS.keys() == TARGETS.keys()


@pytest.mark.filterwarnings("ignore:::mlflow|sqlalchemy|alembic|wandb|trackio|starlette|fastapi")
@pytest.mark.parametrize("name", TARGETS)
def test_an_interrupted_export_loses_and_repeats_nothing(run: RunFolder, name: str) -> None:
    pytest.importorskip(TARGETS[name].module, reason=f"{TARGETS[name].install} is not installed")
    if name == "mlflow":
        pytest.importorskip("sqlalchemy", reason="MLflow's local store needs sqlalchemy, which mlflow-skinny omits")
    for writes in (1, 2):
        with pytest.raises(KilledError):
            export(run, name, die_after(writes))
    rows_left = export(run, name)
    values, kinds = READERS[name](run, run.path / "export" / name)
    expected_values, expected_kinds = logged(run)
    assert (values - expected_values, expected_values - values) == (Counter(), Counter())
    assert kinds == expected_kinds
    assert 0 < rows_left < sum(expected_kinds.values()) + STEPS
    assert export(run, name) == 0  # nothing is left to do


@pytest.mark.parametrize("name", ["parquet", "tensorboard"])
def test_an_export_starts_again_if_its_files_were_removed(run: RunFolder, name: str) -> None:
    export(run, name)
    for path in (run.path / "export" / name).rglob("*.*"):
        path.unlink()
    export(run, name)
    assert READERS[name](run, run.path / "export" / name) == logged(run)


def test_the_unfinished_file_of_a_killed_exporter_is_removed(run: RunFolder) -> None:
    folder = run.path / "export" / "parquet"
    (folder / "events").mkdir(parents=True)
    (folder / "events" / "000000000040.parquet.123.partial").touch()
    export(run, "parquet")
    assert read_parquet(run, folder) == logged(run), "pyarrow reads every file in a folder"


def test_an_export_ends_at_a_signal_while_its_target_does_not_answer(run: RunFolder) -> None:
    def prepare(target: Target) -> None:
        def open_during_an_outage(seq: int, mark: str) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError("no route to host")

        target.open = open_during_an_outage  # type: ignore[method-assign]

    with pytest.raises(ProcessError, match="did not answer before the export was stopped"):
        export(run, "parquet", prepare)


def test_a_target_that_fails_for_a_while_gets_every_row_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_controller.exporting.exporter.FIRST_RETRY_S", 0.0)

    def prepare(target: Target) -> None:
        write, failures = target.write, [OSError("the disk is full"), OSError("the disk is full")]

        def fail_after_writing(rows: Sequence[Row], events: Sequence[Row]) -> str:
            mark = write(rows, events)
            if failures:
                raise failures.pop()
            return mark

        target.write = fail_after_writing  # type: ignore[method-assign]

    export(run, "tensorboard", prepare)
    assert read_tensorboard(run, run.path / "export" / "tensorboard") == logged(run)


def test_a_second_exporter_is_refused(run: RunFolder) -> None:
    with (
        locked_target(run, "parquet"),
        pytest.raises(ConfigError, match="already being exported to parquet by"),
    ):
        export(run, "parquet")


def test_another_destination_gets_the_whole_run(run: RunFolder) -> None:
    (run.path / "export").mkdir()
    export_state.save(run.path, "parquet", export_state.ExportState(destination="elsewhere", seq=40))
    export(run, "parquet")
    assert read_parquet(run, run.path / "export" / "parquet") == logged(run)


def test_a_missing_package_is_named(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_controller.exporting.target.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs mlflow, which is not installed: `pip install mlflow-skinny`"):
        export(run, "mlflow")


@contextlib.contextmanager
def refusing_server() -> Iterator[str]:
    """Serve 401 for every request, as a tracking server does without a password."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_mlflow_says_that_the_credentials_are_wrong(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    with refusing_server() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        with pytest.raises(ConfigError, match=r"^MLflow refused the credentials .*; set MLFLOW_TRACKING_USERNAME"):
            export(run, "mlflow")


def test_a_row_has_what_happened_in_words(run: RunFolder) -> None:
    export(run, "parquet")
    rows = import_module("pyarrow.parquet").read_table(run.path / "export" / "parquet" / "events").to_pylist()
    decision = next(row for row in rows if row["kind"] == "decision")
    assert (decision["subject"], decision["before"], decision["after"]) == ("optimizer.lr_scale", "1", "0.5")
    assert (decision["author"], decision["status"], decision["text"]) == ("learning_rate", "adopted", "loss is noisy")
