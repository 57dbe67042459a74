"""A training script that knows nothing of the controller: `logged_curves.py LOGGER FOLDER` logs a curve to one logger,
and writes what the logger has stored to FOLDER/stored.json, without times and ids."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS = 30
BLOCK = 32768
EVERY = 10
"""Steps between two evaluations."""


def curve() -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the step and the values of each call. An evaluation is another call with the same step."""
    for step in range(1, STEPS + 1):
        loss = torch.tensor(2 * math.exp(-step / 10))
        yield step, {"train/loss": loss, "train/lr": np.float64(1e-3 * step), "train/grad_norm": 1.0 / step}
        if step % EVERY == 0:
            yield step, {"eval/accuracy": step / 100}


def use_torch_writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return _use_writer(SummaryWriter(str(folder / "events")), folder)


def use_tensorboardx(folder: Path) -> Any:
    return _use_writer(importlib.import_module("tensorboardX").SummaryWriter(str(folder / "events")), folder)


def _use_writer(writer: Any, folder: Path) -> Any:
    for step, values in curve():
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    writer.add_scalars("share", {"a": 0.25, "b": 0.75}, STEPS)
    writer.close()
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [event for file in sorted(folder.rglob("events.out*")) for event in EventFileLoader(str(file)).Load()]
    return [[event.step, str(event.summary)] for event in events if event.HasField("summary")]


def use_wandb(folder: Path) -> Any:
    wandb = importlib.import_module("wandb")
    run = wandb.init(project="p", mode="offline", dir=str(folder), settings=wandb.Settings(silent=True))
    for step, values in curve():
        wandb.log(values, step=step, commit=False)
    wandb.log({"note": "text", "share": {"a": 0.25, "b": 0.75}}, step=STEPS)
    run.finish()
    wandb.teardown()  # its service writes the rest of the file
    proto = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for data in _records(next(folder.rglob("run-*.wandb"))):
        record = proto.Record.FromString(data)
        items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
        if row := sorted(item for item in items if item[0] not in ("_timestamp", "_runtime")):
            rows.append(row)
    return rows


def _records(file: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, which wandb and SwanLab use behind a header of 7 bytes."""
    data, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if kind == 0:  # padding up to the next block
            position = (position // BLOCK + 1) * BLOCK
            continue
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield record
            record = b""
        if BLOCK - position % BLOCK < 7:
            position = (position // BLOCK + 1) * BLOCK


def use_trackio(folder: Path) -> Any:
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    trackio = importlib.import_module("trackio")
    trackio.init(project="p", name="r", auto_log_cpu=False)
    for step, values in curve():
        trackio.log({name: float(value) for name, value in values.items()}, step=step)
    trackio.finish()
    import sqlite3

    with sqlite3.connect(next(folder.rglob("*.db"))) as database:
        return [
            [step, json.loads(metrics)]
            for step, metrics in database.execute("SELECT step, metrics FROM metrics ORDER BY id")
        ]


def use_swanlab(folder: Path) -> Any:
    swanlab = importlib.import_module("swanlab")
    swanlab.init(project="p", mode="offline", log_dir=str(folder / "swanlog"))
    for step, values in curve():
        swanlab.log({name: float(value) for name, value in values.items()}, step=step)
    swanlab.finish()
    proto = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2")
    records = map(proto.Record.FromString, _records(next(folder.rglob("run-*.swanlab"))))
    scalars = [record.scalar for record in records if record.HasField("scalar")]
    return [[scalar.step, scalar.key, scalar.value.number] for scalar in scalars]


def use_mlflow(folder: Path) -> Any:
    os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlruns").as_uri()
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow = importlib.import_module("mlflow")
    with mlflow.start_run() as run:
        for step, values in curve():
            *first, last = ({name: float(value)} for name, value in values.items())
            for metrics in first:
                mlflow.log_metrics(metrics, step=step)
            for name, value in last.items():
                mlflow.log_metric(name, value, step=step)
    client = mlflow.MlflowClient()
    names = sorted(client.get_run(run.info.run_id).data.metrics)
    return {n: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, n)] for n in names}


def use_verl(folder: Path) -> Any:
    os.environ["TRACKED_FILE"] = str(folder / "tracked.jsonl")
    tracking = importlib.import_module("verl.utils.tracking").Tracking("p", "r", ["file"])
    for step, values in curve():
        tracking.log(data={name: float(value) for name, value in values.items()}, step=step)
    return (folder / "tracked.jsonl").read_text()


LOGGERS: dict[str, Callable[[Path], Any]] = {
    "TensorBoard": use_torch_writer,
    "tensorboardX": use_tensorboardx,
    "wandb": use_wandb,
    "trackio": use_trackio,
    "SwanLab": use_swanlab,
    "MLflow": use_mlflow,
    "verl": use_verl,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the loggers' own
    _, logger, path = sys.argv
    stored = LOGGERS[logger](Path(path))
    (Path(path) / "stored.json").write_text(json.dumps(stored))
