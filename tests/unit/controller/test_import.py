"""A training's own logs become a run: real files of the real libraries, and files that are none."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, trainer
from tests.support.own_home import invoke, own_home

from oven_controller.importing.importer import LogEntry
from oven_controller.importing.rows import ROWS_WITHOUT_STEP, Row, measured_rows
from oven_controller.importing.run_writer import StoredRows, write_log
from oven_controller.importing.wandb import StepAxes
from oven_controller.stack.preflight_checks import Request
from oven_controller.stack.up import run_stack
from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_runs.access import log_sources
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.replay import replay
from oven_runs.metrics.metric_names import metric_name, metric_spec
from oven_runs.metrics.objectives import MetricNames
from oven_runs.settings.resolution import resolve


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture
def imported(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def call(*args: str) -> dict[str, Any]:
        capsys.readouterr()
        assert invoke("import", *args, "--json") == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return call


def bodies(report: dict[str, Any]) -> list[Any]:
    return [event.body for event in log_sources.exported_events(RunFolder(Path(report["folder"])))]


def observations(report: dict[str, Any]) -> list[Observation]:
    return [body for body in bodies(report) if isinstance(body, Observation)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Twelve steps of transformers' own Trainer, one row of them NaN: its output folder and what it logged."""
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("trained")
    job = trainer(
        folder, logging_steps=2, eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=6,
        report_to=["tensorboard"], logging_nan_inf_filter=False, learning_rate=0.02,
    )  # fmt: skip
    job.train()
    history = job.state.log_history
    for checkpoint in (6, 12):  # what a diverged training leaves: NaN, which JSON has no word for
        path = folder / f"checkpoint-{checkpoint}" / "trainer_state.json"
        state = json.loads(path.read_text())
        state["log_history"][0]["loss"] = math.nan
        path.write_text(json.dumps(state))
    return folder, history


@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_a_trainers_checkpoint(
    trained: tuple[Path, list[dict[str, Any]]], imported: Callable[..., dict[str, Any]]
) -> None:
    folder, history = trained
    report = imported(str(folder))
    assert report["source"].endswith("checkpoint-12/trainer_state.json") and report["format"] == "trainer_state"
    assert (report["max_steps"], report["last_step"], report["untimed"]) == (12, 12, 6)
    started, *_, ended = bodies(report)
    assert isinstance(started, RunStarted) and isinstance(ended, RunEnded)
    assert (started.recipe, started.rules.autonomy, started.horizon.max_steps) == ("imported", "observe", 12)
    assert [(s.name, s.value, s.low, s.high) for s in started.actuators] == [("optimizer.lr_scale", 1.0, 0.1, 3.0)]
    assert {m.name for m in started.metrics if m.held_out} == {"eval/loss"}
    assert not started.keys and ended.reason == "completed"
    seen = observations(report)
    assert [o.step for o in seen] == [2, 4, 6, 8, 10, 12] and [o.tick for o in seen] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(seen[0].metrics["loss"])
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert [o.metrics["loss"] for o in seen[1:]] == pytest.approx(losses[1:])
    evaluated = {o.step: o.metrics["eval/loss"] for o in seen if "eval/loss" in o.metrics}
    assert evaluated == pytest.approx({e["step"]: e["eval_loss"] for e in history if "eval_loss" in e})
    assert not {"epoch", "train_runtime", "step"} & report["metrics"].keys()
    early = imported(str(folder / "checkpoint-6"), "--run", "early")
    assert bodies(early)[-1].reason == "stopped"


@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_the_same_training_from_tensorboard(
    trained: tuple[Path, list[dict[str, Any]]], imported: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    folder, history = trained
    assert invoke("import", str(folder / "runs")) == 2
    assert "has no log; choose one of " in capsys.readouterr().err
    (events,) = (folder / "runs").iterdir()
    report = imported(str(events))
    seen = observations(report)
    by_step = {o.step: o.metrics for o in seen}
    for entry in history[:-1]:  # the last sums the training up
        wanted = {metric_name(f"eval/{k[5:]}" if k.startswith("eval_") else k): v for k, v in entry.items()}
        for name in ("loss", "grad_norm", "learning_rate", "eval/loss"):
            if name in wanted:
                assert by_step[entry["step"]][name] == pytest.approx(wanted[name], rel=1e-6)
    times = [event.time for event in log_sources.exported_events(RunFolder(Path(report["folder"])))]
    assert times == sorted(times) and report["untimed"] == 0


@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_a_resumed_training_is_a_second_incarnation(
    tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    folder = tmp_path / "board"
    for begins, ends in ((1, 8), (6, 12)):
        writer = SummaryWriter(str(folder), filename_suffix=f".{begins}")
        for step in range(begins, ends + 1):
            writer.add_scalar("train/loss", 1 / step, step, walltime=1000 + step)
            if step % 5 == 1 and step > 1:
                writer.add_scalar("val/loss", 2.0, step - 1, walltime=1000 + step)  # late, and no restart
        writer.add_text("note", "no number", 1)
        writer.close()
    report = imported(str(folder), "--run", "twice")
    assert report["incarnations"] == 2 and report["skipped"] == {"values that are not numbers": 2}
    starts = [body for body in bodies(report) if isinstance(body, RunStarted)]
    assert [(s.incarnation, s.tick, s.step) for s in starts] == [(1, 0, 0), (2, 9, 5)]
    late = [o for o in observations(report) if "eval/loss" in o.metrics]
    assert [(o.step, o.metrics.get("loss")) for o in late] == [(5, None), (5, None), (10, None)]
    assert invoke("replay", "twice", "--verify") == 0
    output = capsys.readouterr().out
    assert "the same, byte for byte" in output and "this run is not signed" in output


def test_metrics_are_placed_at_the_step_of_their_axis() -> None:
    axes = StepAxes()
    axes.define("", "train/*", "train/step")
    axes.define("eval/loss", "", "eval/step")
    axes.define("seen", "", "epoch")
    row = {"_step": 0, "train/step": 10, "train/loss": 1.0, "other": 2.0, "seen": 3.0, "epoch": 1}
    placed = {name: step for step, values in axes.split_row(row) for name in values}
    assert {name: placed[name] for name in ("train/loss", "other", "seen")} == {
        "train/loss": 10,
        "other": 10,
        "seen": 10,
    }
    placed = {n: s for s, values in axes.split_row({"_step": 1, "eval/step": 7, "eval/loss": 1.0}) for n in values}
    assert placed["eval/loss"] == 7
    placed = {n: s for s, values in axes.split_row({"_step": 2, "train/loss": 1.0, "eval/loss": 1.0}) for n in values}
    assert (placed["train/loss"], placed["eval/loss"]) == (10, 7), "each axis's newest value"
    axes.split_row({"_step": 3, "train/step": 20, "train/loss": 1.0})
    assert axes.split_row({"_step": 4, "other": 2.0})[0][0] == 20, "the axis updated last, not the one first seen last"
    plain = StepAxes()
    assert plain.split_row({"_step": 4, "loss": 1.0}) == [(4, {"_step": 4, "loss": 1.0})]
    named_ = StepAxes("my_step")
    named_.define("", "*", "train/step")
    assert named_.split_row({"_step": 4, "my_step": 9, "train/step": 2, "loss": 1.0})[0][0] == 9


WANDB = """
import os, sys, wandb
run = wandb.init(project="x", dir=sys.argv[1], mode="offline", settings=wandb.Settings(console="off"))
for i in range(1, 2001):
    row = {"train/loss": float("nan") if i == 3 else 1 / i, "train/learning_rate": 1e-4, "train/global_step": 5 * i}
    run.log(row | ({"note": "x" * 40_000, "h": wandb.Histogram([1.0, 2.0])} if i == 2 else {}))
run.finish()
"""


def test_an_offline_run_of_wandb(tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any) -> None:
    pytest.importorskip("wandb")
    subprocess.run([sys.executable, "-c", WANDB, str(tmp_path)], check=True, timeout=120, capture_output=True)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    report = imported(str(folder))
    assert (report["observations"], report["first_step"], report["last_step"]) == (2000, 5, 10_000)
    assert report["metrics"] == {"learning_rate": 2000, "loss": 2000} and report["untimed"] == 0
    assert report["skipped"] == {"values that are not numbers": 2}  # the note, and the histogram
    seen = observations(report)
    assert math.isnan(seen[2].metrics["loss"]) and seen[-1].metrics["loss"] == pytest.approx(1 / 2000)
    (file,) = folder.glob("*.wandb")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    half = imported(str(file))
    assert 0 < half["observations"] < 2000 and half["skipped"]["rows that were cut off"] == 1
    file.write_bytes(data[:9000] + b"?" + data[9001:])
    assert invoke("import", str(file)) == 2
    assert "a checksum is wrong" in capsys.readouterr().err


def test_tables(tmp_path: Path, imported: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "w.csv").write_text(
        '"Step","run-7 - train/loss","run-7 - train/loss__MIN","run-7 - lr"\n"10","2.5","2.4","1e-4"\n"20","","",""\n'
        '"30","nan","1","1e-4"\n"x","1","1","1"\n'
    )
    report = imported("w.csv")
    assert report["metrics"] == {"learning_rate": 2, "loss": 2} and report["skipped"] == {ROWS_WITHOUT_STEP: 1}
    assert [o.step for o in observations(report)] == [10, 30]  # nothing was measured at 20
    lines = [
        {"_step": 0, "training/global_step": 1, "critic/rewards/mean": 0.5, "_timestamp": 1_700_000_000.5},
        {"_step": 1, "training/global_step": 2, "critic/rewards/mean": None, "loss": "NaN", "ok": True, "name": "a"},
    ]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"_step": 2, "lo')
    report = imported("h.jsonl", "--rename", "critic/rewards/mean=reward")
    first, second = observations(report)
    assert (first.step, first.metrics) == (1, {"reward": 0.5}) and math.isnan(second.metrics["loss"])
    assert (
        report["skipped"] == {"values that are not numbers": 2, "rows that were cut off": 1} and report["untimed"] == 1
    )
    times = [event.time.timestamp() for event in log_sources.exported_events(RunFolder(Path(report["folder"])))]
    assert times[:2] == [1_700_000_000.5] * 2


def test_an_agent_votes_on_an_imported_run(
    tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    table = [f"{step},{0.7 if step < 300 else 0.0},1e-4\n" for step in range(10, 501, 10)]
    (tmp_path / "grpo.csv").write_text("step,train/reward,train/learning_rate\n" + "".join(table))
    imported("grpo.csv", "--run", "last-month")
    assert invoke("backtest", "learning_rate", "last-month", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ticks"] == 50 and not report["cannot_fire"] and not report["took_part"]
    assert {vote["actuator"] for vote in report["votes"]} == {"optimizer.lr_scale"}
    assert "reward fell from 0.70 to 0.00" in report["votes"][0]["rationale"]
    assert report["votes"][0]["tick"] in range(30, 34)
    for command in (["runs"], ["status", "last-month"], ["log", "last-month"], ["replay", "last-month"]):
        assert invoke(*command) == 0
    output = capsys.readouterr().out
    assert "last-month: completed (imported, start csv)" in output and "autonomy: observe" in output


async def test_an_imported_run_cannot_be_resumed(
    tmp_path: Path, home: Home, imported: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n1,2\n")
    imported("a.csv", "--run", "old")
    with pytest.raises(ValueError, match="was imported and cannot be resumed"):
        await run_stack(Request(resolve(), run="old", resume=True), home, print)


BAD: dict[str, tuple[str, bytes | None, str]] = {
    "none": ("none.csv", None, "none.csv does not exist"),
    "empty csv": ("e.csv", b"", "the file is empty"),
    "empty jsonl": ("e.jsonl", b"", "the file is empty"),
    "empty json": ("e.json", b" \n", "the file is empty"),
    "only a header": ("h.csv", b"step,loss\n", "has no usable measurements (nothing was logged)"),
    "empty wandb": ("run-1.wandb", b"", "is not a W&B run file"),
    "another json": ("x.json", b'{"a": 1}', "no list of objects and no object of lists"),
    "cut json": ("x.json", b'{"log_history": [{"step": 1, "los', "was the program killed while writing it?"),
    "no log": ("x.json", b'{"log_history": []}', "nothing was logged"),
    "no number": ("x.csv", b"step,name\n1,a\n", "values that are not numbers: 1"),
    "several runs": ("x.csv", b"Step,a - loss,b - loss\n1,2,3\n", "contains more than one run: a, b"),
    "binary": ("x.csv", b"step,loss\n1,\0\0\n", "is a binary file"),
    "no JSON line": ("x.jsonl", b'{"step": 1, "loss": 2}\nhello\n{"step": 2}\n', "line 2 is not JSON"),
    "no object": ("x.jsonl", b"[1]\n", "line 1 is not a JSON object"),
    "another format": (
        "x.parquet",
        b"PAR1\0\0",
        "is a binary file, and its format is not supported",
    ),
    "not a board": ("events.out.tfevents.1", b"hello, world", "has no usable measurements"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_a_failed_import_leaves_no_run(case: str, tmp_path: Path, home: Home, capsys: Any) -> None:
    name, data, message = BAD[case]
    if case == "empty wandb":
        pytest.importorskip("wandb")
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert invoke("import", name) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and "Traceback" not in error
    assert home.runs() == [] and not list((home.path / "runs").glob("*"))


def test_any_column_is_renamed(tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any) -> None:
    (tmp_path / "a.csv").write_text("iter,tokens,train/nll,eval_ppl,loss\n10,5,2,3,9\n20,6,1,2,9\n")
    report = imported("a.csv", "--rename", "iter=step", "--rename", "train/nll=loss", "--rename", "eval_ppl=eval/loss")
    assert [(o.step, o.metrics["loss"], o.metrics["eval/loss"]) for o in observations(report)] == [
        (10, 2, 3),
        (20, 1, 2),
    ]
    assert report["metrics"] == {"eval/loss": 2, "loss": 2, "tokens": 2}, "a column of the new name gives way"
    for name, text in (("a.jsonl", '{"iter": 4, "step": 1, "loss": 2}\n'), ("a.json", '{"log_history": [%s]}')):
        (tmp_path / name).write_text(text % '{"iter": 4, "step": 1, "loss": 2}' if "%" in text else text)
        assert imported(name, "--rename", "iter=step")["last_step"] == 4
    for pair, message in (("itr=step", "did you mean iter"), ("x=reward", "a.csv has no column x; its columns are ")):
        assert invoke("import", "a.csv", "--rename", "iter=step", "--rename", pair) == 2
        assert message in capsys.readouterr().err


def test_declared_knobs_are_announced_and_wrong_ones_refused(
    tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    (tmp_path / "a.csv").write_text("step,loss,rewards/a/mean,rewards/b/mean\n1,2,.1,.2\n")
    options = ["optimizer.lr_scale", "run.rollback", "grad.clip=0.5", "optimizer.weight_decay=0.1", "reward.weights"]
    report = imported("a.csv", *(word for knob in options for word in ("--knob", knob)))
    specs = {spec.name: spec for body in bodies(report) if isinstance(body, RunStarted) for spec in body.actuators}
    assert (specs["grad.clip"].value, specs["grad.clip"].low, specs["grad.clip"].high) == (0.5, 0.05, 1.5)
    assert (specs["optimizer.weight_decay"].low, specs["optimizer.weight_decay"].high) == (0.0, 1.0)
    assert specs["run.rollback"].kind == "action" and specs["optimizer.lr_scale"].risky
    assert specs["reward.weights"].value == {"a": 0.5, "b": 0.5}
    wrong = {
        "grad.clp": "did you mean grad.clip?", "zzz": "known knobs: optimizer.lr_scale, ",
        "grpo.beta": "must be a number above 0",
        "grad.clip=-1": "must be a number above 0", "grad.clip=x": "must be a number above 0",
        "run.rollback=3": "write --knob run.rollback",
        "data.mixture": "at least two metrics named reward/*", "reward.weights=3": "takes no value",
    }  # fmt: skip
    for knob, message in wrong.items():
        assert invoke("import", "a.csv", "--knob", knob) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error


def test_knobs_have_the_bounds_that_attach_announces() -> None:
    from oven_controller.importing import declared_knobs
    from oven_learner.optim import weight_decay
    from oven_learner.optim.lr_scale import USER_BOUNDS

    assert (declared_knobs.LOW_FACTOR, declared_knobs.HIGH_FACTOR) == USER_BOUNDS
    assert declared_knobs.MAX_DECAY_FACTOR == weight_decay.MAX_FACTOR


def test_metrics_get_the_names_of_attach() -> None:
    pairs = {
        "train/loss": "loss", "train_loss": "loss", "eval_loss": "eval/loss", "eval/loss": "eval/loss",
        "val/accuracy": "eval/accuracy", "train/rewards/exact/mean": "rewards/exact/mean", "train/lr": "learning_rate",
        "reward": "reward", "train/train_loss": None, "train/global_step": None, "epoch": None, "_runtime": None,
    }  # fmt: skip
    assert {name: metric_name(name) for name in pairs} == pairs
    assert metric_spec("eval/accuracy").better == "up" and not metric_spec("eval/runtime").held_out


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""JSON has no numbers for these."""
VALUES = st.one_of(
    st.floats(),
    st.sampled_from(NOT_FINITE),
    st.none(),
    st.text("xyz", max_size=3),
    st.booleans(),
    st.lists(st.integers(), max_size=1),
)
ENTRIES = st.builds(
    LogEntry, st.one_of(st.integers(-2, 30), st.none()), st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)
)


@settings(max_examples=50)
@given(st.lists(ENTRIES, max_size=20))
def test_every_number_is_measured_once_at_its_own_step(entries: list[LogEntry]) -> None:
    skipped: Counter[str] = Counter()
    made: list[Row] = list(measured_rows(entries, skipped, MetricNames()))
    usable = [entry for entry in entries if isinstance(entry.step, int) and entry.step >= 0]
    pairs = [(e.step, k, float(v) if v in NOT_FINITE else v) for e in usable for k, v in e.values.items()]
    wanted = [(step, k, repr(v)) for step, k, v in pairs if type(v) is float]
    got = [(row.step, k, repr(v)) for row in made for k, v in row.metrics.items()]
    assert sorted(got) == sorted(wanted)
    assert skipped[ROWS_WITHOUT_STEP] == len(entries) - len(usable)
    assert all(row.metrics for row in made)


STEPS_OF = st.lists(
    st.builds(
        Row,
        st.integers(0, 12),
        st.dictionaries(st.sampled_from("abc"), st.just(1.0), min_size=1),
        st.one_of(st.none(), st.floats(0, 2e9)),
        st.one_of(st.none(), st.integers(0, 99).map(float)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS_OF)
def test_a_metric_never_goes_back_within_an_incarnation(tmp_path: Path, measured: list[Row]) -> None:
    folder = RunFolder(tmp_path / "any")
    folder.path.mkdir(exist_ok=True)
    with StoredRows(measured, modified_at=1e9) as rows:
        written = rows.totals
        write_log(folder, rows, detail="made up")
    newest: dict[str, int] = {}
    starts = 0
    seen: list[Observation] = []
    for event in log_sources.exported_events(folder):
        match event.body:
            case RunStarted() as started:
                starts += 1
                assert (started.incarnation, started.tick, started.n) == (starts, len(seen), 0)
                newest.clear()
            case Observation() as body:
                seen.append(body)
                assert body.incarnation == starts and body.tick == len(seen) and 0 <= body.progress <= 1
                assert all(newest.get(name, -1) <= body.step for name in body.metrics)
                newest.update(dict.fromkeys(body.metrics, body.step))
    assert [(o.step, o.metrics.keys() - {"epoch"}) for o in seen] == [(row.step, set(row.metrics)) for row in measured]
    assert all(o.metrics.get("epoch", row.epoch) == row.epoch for o, row in zip(seen, measured, strict=True))
    assert starts == written.incarnations
    assert replay(log_sources.exported_events(folder), "any").same


@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_a_second_event_file_that_continues_is_no_restart(
    tmp_path: Path, imported: Callable[..., dict[str, Any]], capsys: Any
) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    def board(name: str, *parts: tuple[int, int]) -> str:
        for begins, ends in parts:
            writer = SummaryWriter(str(tmp_path / name), filename_suffix=f".{begins}")
            for step in range(begins, ends + 1):
                writer.add_scalar("train/loss", 1 / step, step, walltime=1000 + step)
            writer.close()
        return str(tmp_path / name)

    for parts in (((1, 8), (9, 12)), ((1, 8), (8, 12))):  # the second says the newest step once more
        result = imported(board(f"on-{parts[1][0]}", *parts))
        assert result["incarnations"] == 1 and result["last_step"] == 12
    assert invoke("import", board("back", (1, 8), (7, 12))) == 0
    assert "steps 1 to 12, steps restart once;" in " ".join(capsys.readouterr().out.split())
    assert invoke("import", board("back-again", (1, 8), (7, 12), (2, 3))) == 0
    assert "steps 1 to 3, steps restart twice;" in " ".join(capsys.readouterr().out.split())
