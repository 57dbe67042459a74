"""`run --tap` without the stack around it: a real server, real loggers, and scripts that know nothing of the tap."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import ROOT, Server, off_loop, serving
from tests.support.logged_curves import LOGGERS, curve

from oven_core.protocol.messages import LearnerMessage, Observation, RunEnded, RunStarted

STARTUP = ROOT / "learner" / "oven_learner" / "startup"
SCRIPT = ROOT / "tests" / "support" / "logged_curves.py"
STANDINS = ROOT / "tests" / "support" / "loggers"
PACKAGES = {"TensorBoard": "tensorboard", "SwanLab": "swanlab", "MLflow": "mlflow", "verl": "sys"}
NAMES = {"train/loss": "loss", "train/lr": "learning_rate", "train/grad_norm": "grad_norm"}
TWO_WRITERS = """
from torch.utils.tensorboard import SummaryWriter
first, second = SummaryWriter("first"), SummaryWriter("second/val")
for step in range(1, 9):
    first.add_scalar("gpu/memory", 7.0, step)
    first.add_scalar("train/loss", 1 / step, step)
    second.add_scalar("loss", 2 / step, step)
raise SystemError("out of tokens")
"""

TWO_LOGGERS = """
from torch.utils.tensorboard import SummaryWriter
from verl.utils.tracking import Tracking
writer, other = SummaryWriter("first"), Tracking("p", "r", [])
for step in range(1, 9):
    other.log({"perf/mfu": 0.5}, step=step)
    writer.add_scalar("train/loss", step / 2, step)
    if step == 4:
        open("go").read()
writer.close()
"""

NESTED_LOGGERS = """
from verl.utils.tracking import Tracking
tracking = Tracking("p", "r", ["tensorboard"])
values = {}
for step in range(1, 9):
    values.update({"actor/pg_loss": step / 2, "note": "text"})
    try:
        tracking.log(step=step)
    except TypeError:
        values.pop("note")
    tracking.log(data=values, step=step)
    values.clear()
"""


def run_script(arguments: list[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=dict(env), capture_output=True, text=True, timeout=300
    )


def tapped(server: Server, folder: Path) -> dict[str, str]:
    env = server.env("learner")
    path = os.pathsep.join(map(str, (STARTUP, env["PYTHONPATH"], STANDINS)))
    return env | {"PYTHONPATH": path, "OVEN_TAP": "1", "OVEN_RUN_DIR": str(folder)}


def expected_rows(logger: str) -> Iterator[tuple[int, dict[str, float]]]:
    """What a logger's curve should be on the log: one row per step, with standard names."""
    rows: dict[int, dict[str, float]] = {}
    for step, values in curve():
        rows.setdefault(step, {}).update({NAMES.get(name, name): round_nine(value) for name, value in values.items()})
    separator = {"TensorBoard": "/", "tensorboardX": "/", "wandb": "."}.get(logger)
    if separator:
        rows[max(rows)] |= {f"share{separator}a": 0.25, f"share{separator}b": 0.75}
    yield from rows.items()


def round_nine(value: Any) -> float:
    return float(f"{float(value):.9g}")


@pytest.mark.parametrize("logger", LOGGERS)
async def test_each_scalar_is_observed_once_and_the_logger_stores_the_same(logger: str, tmp_path: Path) -> None:
    package = PACKAGES.get(logger, logger)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folders = [tmp_path / "plain", tmp_path / "tapped"]
    for folder in folders:
        folder.mkdir()
    async with serving(tmp_path) as server:
        env = tapped(server, tmp_path)
        plain_env = {name: value for name, value in env.items() if not name.startswith("OVEN_")}
        outputs = [
            await off_loop(run_script, [str(SCRIPT), logger, str(folder)], folder, environment)
            for folder, environment in zip(folders, (plain_env, env), strict=True)
        ]
        events = await server.events()
    assert [output.returncode for output in outputs] == [0, 0], outputs[1].stderr
    plain, observed = ((folder / "stored.json").read_text() for folder in folders)
    assert observed == plain and len(json.loads(plain)) > 1
    bodies = [event.body for event in events if isinstance(event.body, LearnerMessage)]
    expected = list(expected_rows(logger))
    names = {name for _, metrics in expected for name in metrics}
    rows = [
        (body.step, {name: value for name, value in body.metrics.items() if name in names})
        for body in bodies
        if isinstance(body, Observation)
    ]
    assert rows == expected
    starts = [body for body in bodies if isinstance(body, RunStarted)]
    assert {start.incarnation for start in starts} == {1} and not starts[-1].actuators
    directions = {spec.name: (spec.better, spec.held_out) for spec in starts[-1].metrics}
    assert directions["loss"] == ("down", False) and directions["eval/accuracy"] == ("up", True)
    assert [body.n for body in bodies] == list(range(1, len(bodies) + 1))
    assert isinstance(bodies[-1], RunEnded) and bodies[-1].reason == "completed"
    assert f"oven: observing what the script logs to {logger}, as run r" in outputs[1].stderr


async def test_a_validation_writer_is_held_out_and_an_exception_ends_the_run_as_failed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        output = await off_loop(run_script, ["-c", TWO_WRITERS], tmp_path, tapped(server, tmp_path))
        bodies = [event.body for event in await server.events()]
    assert output.returncode == 1 and "SystemError: out of tokens" in output.stderr
    observations = [body for body in bodies if isinstance(body, Observation)]
    assert [(body.metrics["loss"], body.metrics["eval/loss"]) for body in observations] == [
        (round_nine(1 / step), round_nine(2 / step)) for step in range(1, 9)
    ]
    [end] = [body for body in bodies if isinstance(body, RunEnded)]
    assert (end.reason, end.detail) == ("failed", "SystemError: out of tokens")


async def test_one_process_and_one_logger_are_observed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with serving(tmp_path) as server:
        env = tapped(server, tmp_path)
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-c", TWO_LOGGERS, cwd=tmp_path, env=env | {"RANK": "0"}, stderr=asyncio.subprocess.PIPE
        )
        await server.logged(lambda event: isinstance(event.body, Observation))
        second = await off_loop(run_script, [str(SCRIPT), "verl", str(tmp_path)], tmp_path, env | {"RANK": "1"})
        (tmp_path / "go").write_text("on")
        _, errors = await first.communicate()
        observations = [event.body for event in await server.events() if isinstance(event.body, Observation)]
    assert (first.returncode, second.returncode) == (0, 0), errors.decode()
    assert "oven:" not in second.stderr
    assert errors.decode().splitlines() == [
        "oven: observing what the script logs to TensorBoard, as run r",
        "oven: the script also logs to verl; only TensorBoard is observed",
    ]
    assert [(body.step, body.metrics["loss"]) for body in observations] == [(step, step / 2) for step in range(1, 9)]


async def test_a_logger_that_writes_to_another_one_is_observed_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        output = await off_loop(run_script, ["-c", NESTED_LOGGERS], tmp_path, tapped(server, tmp_path))
        observations = [event.body for event in await server.events() if isinstance(event.body, Observation)]
    assert output.returncode == 0, output.stderr
    assert [line for line in output.stderr.splitlines() if line.startswith("oven:")] == [
        "oven: observing what the script logs to verl, as run r",
        "oven: the script also logs to TensorBoard; only verl is observed",
    ]
    assert [(body.step, list(body.metrics.values())[:1]) for body in observations] == [
        (step, [step / 2]) for step in range(1, 9)
    ]


async def test_a_script_without_a_run_to_join_trains_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        env = tapped(server, tmp_path) | {"OVEN_URL": "nats://127.0.0.1:1"}
        output = await off_loop(run_script, [str(SCRIPT), "TensorBoard", str(tmp_path)], tmp_path, env)
        assert not await server.events()
    assert output.returncode == 0 and "oven: the script is not observed any more" in output.stderr
    assert (tmp_path / "stored.json").is_file()
