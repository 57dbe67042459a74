"""`bench gpu` without a card: its parts, their time limits, and its results."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from oven_bench.gpu import command
from oven_bench.gpu.command import STUDY, Session, selected
from oven_bench.gpu.part_process import Outcome, PartProcess
from oven_bench.gpu.parts import PARTS, Part
from oven_bench.gpu.results import markdown
from oven_bench.gpu.sizes import Sizes, full, tiny
from oven_bench.study import Report
from oven_core.errors import ConfigError, UnknownNameError

FACTS = {"card": None, "cores": 2, "python": "3.12.3", "versions": {"torch": "2.11.0", "trl": None}}


def unmeasured(_: object) -> Report:
    return Report({})


def wait_for(process: PartProcess) -> Outcome:
    while (outcome := process.poll()) is None:
        time.sleep(0.05)
    return outcome


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[PartProcess]:
    process = PartProcess(PARTS["snapshots"], tiny("cpu"), tmp_path, limit_s=0.0)
    yield process
    process.end()


def test_a_part_beyond_its_limit_ends_with_the_reason(snapshots: PartProcess) -> None:
    outcome = wait_for(snapshots)
    assert (outcome.status, outcome.figures) == ("failed", {})
    assert outcome.failures == ["its limit of 0 s is over"]


def test_a_part_that_raises_is_reported_with_its_traceback(tmp_path: Path) -> None:
    sizes = dataclasses.replace(tiny("cpu"), models=("missing",))  # type: ignore[arg-type]
    outcome = wait_for(PartProcess(PARTS["gauges"], sizes, tmp_path, limit_s=300))
    assert outcome.status == "failed"
    assert outcome.failures[0].startswith("ValidationError") or "missing" in outcome.failures[0]
    assert "Traceback" in outcome.traceback


def test_parts_are_skipped_when_no_time_is_left_and_results_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tiny("cpu"), 0.0, tmp_path, FACTS)
    session.run([Part("bits", "made up", 10, False, unmeasured)], tmp_path)
    assert [outcome.status for outcome in session.outcomes] == ["skipped"]
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["parts"][0]["failures"] == ["no time is left; raise --minutes"]
    assert "bits: skipped" in capsys.readouterr().out


def test_parts_keep_the_order_of_their_value() -> None:
    assert [part.name for part in selected("tests,bits")] == ["bits", "tests"]
    assert selected("") == list(PARTS.values())
    with pytest.raises(UnknownNameError, match="bit"):
        selected("bit")


def test_the_table_names_the_problem_of_a_part_and_its_nested_figures() -> None:
    outcomes = [
        Outcome("bits", "failed", 3.0, {"grpo": {"values": 7, "lines": ["a", "b"]}}, ["a | b differ"]),
        Outcome("steps", "passed", 4.0, {"observe": {"ratio": 1.0123456}}),
    ]
    text = markdown(FACTS, outcomes)
    assert "| attached in observe ends in the same bits | failed | 3 | a / b differ |" in text
    assert "| grpo / values | 7 |" in text and "| grpo / lines | a; b |" in text
    assert "| observe / ratio | 1.012 |" in text
    assert text.startswith("CPU, a rehearsal, 2 cores, Python 3.12.3, torch 2.11.0.")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="create it first"):
        STUDY.run(["--out", str(tmp_path / "missing")])


def test_sizes_travel_to_a_process_and_back() -> None:
    sizes = full("cuda")
    assert TypeAdapter(Sizes).validate_json(json.dumps(dataclasses.asdict(sizes))) == sizes
    assert sizes.order("cache").completion == sizes.generating[3]
    assert command.CORES_TOGETHER > 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no card")
def test_a_read_of_a_value_counts_as_a_synchronization() -> None:
    from oven_bench.gpu.synchronization import synchronizations

    value = torch.ones((), device="cuda")
    assert sum(synchronizations(value.item).values()) == 1
    assert not synchronizations(lambda: value + 1)
