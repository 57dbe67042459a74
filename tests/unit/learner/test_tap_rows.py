"""How the tap merges a logger's calls into rows, names the columns, and finds sitecustomize and modules to wrap."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from oven_core.protocol.messages import Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner import import_hook
from oven_learner.import_hook import after_import
from oven_learner.integrations.tracker import OvenTracker
from oven_learner.link.find_controller import Connection
from oven_learner.tap.observer import REFUSAL, Observer
from oven_learner.tap.rows import ColumnNames, Row, Rows, is_training_metric
from oven_learner.tap.tap import numbers_in
from oven_learner.testing import FakeLink, decision

STARTUP = Path(import_hook.__file__).parent / "startup"
LEARNER = STARTUP.parents[1]


def merge(*calls: tuple[Mapping[str, float], Any]) -> list[Row]:
    rows = Rows()
    complete = [rows.add(values, step) for values, step in calls]
    return [row for row in (*complete, rows.finish()) if row is not None]


def test_calls_with_one_step_are_one_row() -> None:
    calls = [({"loss": 2.0}, 1), ({"lr": 0.1}, 1), ({"loss": 1.0}, 2), ({"eval/loss": 3.0}, 2)]
    assert merge(*calls) == [Row(1, {"loss": 2.0, "lr": 0.1}), Row(2, {"loss": 1.0, "eval/loss": 3.0})]


def test_a_step_in_the_values_takes_precedence_and_counters_are_no_metrics() -> None:
    calls = [({"loss": 2.0, "train/global_step": 10, "epoch": 0.1}, None), ({"loss": 1.0, "train/global_step": 20}, 1)]
    assert merge(*calls) == [Row(10, {"loss": 2.0}), Row(20, {"loss": 1.0})]


def test_calls_without_a_step_are_counted() -> None:
    calls = [({"loss": 3.0}, None), ({"acc": 0.1}, None), ({"loss": 2.0}, None), ({"loss": 1.0}, None)]
    assert merge(*calls) == [Row(0, {"loss": 3.0, "acc": 0.1}), Row(1, {"loss": 2.0}), Row(2, {"loss": 1.0})]


def test_an_evaluation_that_counts_epochs_belongs_to_the_step_at_which_it_arrives() -> None:
    calls: list[tuple[dict[str, float], int]] = []
    for epoch in (1, 2, 3):
        calls += [({"loss": 1.0}, 10 * epoch + step) for step in range(2)] + [({"val/acc": 0.5}, epoch)]
    assert [row.step for row in merge(*calls)] == [10, 11, 20, 21, 30, 31]
    assert [row.step for row in merge(*calls) if "val/acc" in row.values] == [11, 21, 31]


def test_a_counter_that_starts_again_continues() -> None:
    calls = [({"loss": 1.0}, batch) for _ in range(3) for batch in range(4)]
    assert [row.step for row in merge(*calls)] == list(range(12))


def test_names_are_standard_and_a_later_column_never_takes_an_earlier_name() -> None:
    names = ColumnNames()
    first = {"train/loss": 1.0, "actor/lr": 0.1, "actor/grad_norm": 2.0, "critic/score/mean": 0.5, "val/loss": 3.0}
    assert names.rename(first) == {
        "loss": 1.0, "learning_rate": 0.1, "grad_norm": 2.0, "reward": 0.5, "eval/loss": 3.0,
    }  # fmt: skip
    later = {"loss": 4.0, "eval_loss": 5.0, "train/loss": 6.0}
    assert names.rename(later) == {"loss_": 4.0, "eval/loss_": 5.0, "loss": 6.0}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("train/loss", True), ("actor/pg_loss", True), ("critic/rewards/mean", True), ("lr", True),
        ("system/gpu.0.memory", False), ("val/loss", False), ("epoch", False),
    ],
)  # fmt: skip
def test_a_logger_of_the_machine_is_not_taken_for_the_trainings(column: str, expected: bool) -> None:
    assert is_training_metric(column) is expected


def test_numbers_are_taken_from_tensors_and_nested_mappings_and_all_else_is_skipped() -> None:
    values = {
        "loss": torch.tensor(0.5), "lr": np.float32(0.25), "n": 3, "ok": True, "text": "x", "many": np.zeros(2),
        "part": {"a": 1.0, "b": {"c": np.int64(2)}}, "none": None, "flag": np.bool_(True),
    }  # fmt: skip
    assert numbers_in(values) == {"loss": 0.5, "lr": 0.25, "n": 3, "part.a": 1.0, "part.b.c": 2}


def test_an_observed_run_refuses_commands_and_announces_new_metrics() -> None:
    link = FakeLink()
    observer = Observer(Connection(url="", run="r"), link)
    observer.observe(1, {"loss": 1.0})
    link.incoming += [OperatorCommand(id="c1", action="stop"), decision("optimizer.lr_scale", 0.5)]
    observer.observe(2, {"loss": 1.0, "eval/accuracy": 0.5})
    observer.close("completed")
    starts = [message for message in link.sent if isinstance(message, RunStarted)]
    assert [[spec.name for spec in start.metrics] for start in starts] == [["loss"], ["loss", "eval/accuracy"]]
    assert {start.incarnation for start in starts} == {1}
    receipts = [message for message in link.sent if isinstance(message, Receipt)]
    assert [(r.command, r.actuator, r.status, r.reason) for r in receipts] == [
        ("c1", "stop", "rejected", REFUSAL), ("", "optimizer.lr_scale", "rejected", REFUSAL),
    ]  # fmt: skip
    assert [message.n for message in link.sent] == list(range(1, len(link.sent) + 1))


def test_the_accelerate_tracker_is_known_by_name_and_as_an_object() -> None:
    for log_with in ("oven", OvenTracker()):
        accelerator = Accelerator(cpu=True, log_with=log_with)
        accelerator.init_trackers("project", config={"lr": 1})
        [tracker] = accelerator.trackers
        assert isinstance(tracker, OvenTracker)


def test_a_function_is_called_after_the_import_and_an_error_in_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made_up_logger.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    after_import("made_up_logger", lambda module: seen.append(module.value))
    after_import("made_up_logger", lambda module: module.absent)
    assert importlib.util.find_spec("made_up_logger") is not None and seen == []
    module = importlib.import_module("made_up_logger")
    assert seen == [1]
    after_import("made_up_logger", lambda module: seen.append(module.value + 1))
    assert seen == [1, 2] and importlib.reload(module).value == 1 and seen == [1, 2]
    assert "oven: made_up_logger is not watched, because of AttributeError" in capfd.readouterr().err


def test_a_hidden_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_customized = True\n")
    path = [STARTUP, tmp_path, LEARNER, LEARNER.parent / "controller"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "OVEN_TAP": "1"}
    program = "import sys; print(was_customized, 'oven_learner.tap.loggers' in sys.modules, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("True True False\n", "")


def test_a_python_without_the_package_says_so_once() -> None:
    env = {"PYTHONPATH": str(STARTUP)}
    start = "import site; site.execsitecustomize()"  # -S: no site-packages
    program = f"{start}; import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {start!r}])"
    result = subprocess.run([sys.executable, "-S", "-c", program], env=env, capture_output=True, text=True)
    assert result.stderr.count("cannot import oven_learner") == 1
