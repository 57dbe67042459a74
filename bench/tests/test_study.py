"""The harness of the benches: commands, reports, tasks, results files and intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from oven_bench import benches
from oven_bench.intervals import (
    Interval,
    bootstrapped_mean,
    difference_to_best,
    observed_quantile,
    paired,
    ratio_of_blocks,
)
from oven_bench.study import (
    Report,
    ResultsFile,
    Study,
    code_digest,
    home_folder,
    home_option,
    jobs_option,
    progress,
    run_tasks,
    seed_list,
)
from oven_controller.cli.main import app
from oven_core.errors import ConfigError, ProcessError, UnknownNameError


@click.option("--kind", multiple=True, type=click.Choice(["quick", "slow"]), help="Which.")
@jobs_option()
@home_option
def measure(kind: Sequence[str], jobs: int, home: Path | None) -> Report:
    with home_folder(home) as folder:
        figures = {"kind": kind, "jobs": jobs, "home": folder.is_dir(), "missing": None}
    return Report(figures, [{"seed": 1, "loss": 0.12345}, {"seed": 2, "loss": None}], ["it is too slow"])


STUDY = Study("made-up", measure, "--json")


def test_json_is_one_flat_object_and_a_failure_ends_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.run(["--kind", "quick", "--kind", "slow", "--jobs", "3", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"kind": ["quick", "slow"], "jobs": 3, "home": True, "missing": None}
    assert printed.err == "it is too slow\n"


def test_people_get_a_table_and_a_file_gets_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.run(["--home", str(tmp_path), "--rows", str(tmp_path / "rows.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [["seed", "loss"], ["1", "0.1235"], ["2", "–"]]
    assert "jobs: 2" in lines
    assert json.loads((tmp_path / "rows.json").read_text()) == [{"seed": 1, "loss": 0.12345}, {"seed": 2, "loss": None}]


def test_an_error_is_raised_after_the_report_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    study = Study("made-up", lambda: Report({"done": 3}, error=ProcessError("one run failed")), "")
    with pytest.raises(ProcessError, match="one run failed"):
        study.run(["--json"])
    assert json.loads(capsys.readouterr().out) == {"done": 3}


@pytest.mark.parametrize(
    ("args", "text"),
    [(["--kind", "neither"], "neither"), (["--jobs", "0"], "range"), (["--other"], "--other"), (["x"], "x")],
)
def test_wrong_options_are_refused(args: list[str], text: str) -> None:
    with pytest.raises(Exception, match=text) as refused:
        STUDY.run(args)
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize("name", benches.SUMMARIES)
def test_every_bench_has_a_help_text_and_prints_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benches.run(name, ["--help"]) == 0
    text = capsys.readouterr().out
    assert f"oven-controller {'gym' if name == 'gym' else 'bench ' + name}" in text and "--json" in text
    assert benches.SUMMARIES[name].split(",")[0] in " ".join(text.split())


def test_the_command_line_lists_and_runs_the_benches() -> None:
    assert all(name in CliRunner().invoke(app, ["bench"]).output for name in benches.SUMMARIES)
    refused = CliRunner().invoke(app, ["bench", "rates", "--arm", "unknown"])
    assert refused.exit_code == 2
    with pytest.raises(UnknownNameError, match="did you mean 'rates'"):
        benches.run("rate", [])
    with pytest.raises(UnknownNameError, match="evidence-1"):
        benches.run("reputation", [])


def half(number: int) -> float:
    if number == 3:
        raise ValueError("no half of 3")
    return number / 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_as_tasks_finish_and_an_error_can_be_a_result(jobs: int) -> None:
    assert sorted(run_tasks(half, [2, 4, 6], jobs)) == [1, 2, 3]
    assert sorted(run_tasks(half, [2, 3], jobs, failed=lambda number, error: -number)) == [-3, 1]
    with pytest.raises(ValueError, match="no half of 3"):
        list(run_tasks(half, [3], jobs))


def test_a_log_gets_a_line_at_the_start_and_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("runs", 40) as advance:
        for number in range(40):
            advance(f"run {number}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11 and lines[0] == "runs: 0 of 40"
    assert lines[1].startswith("runs: 4 of 40 after ") and lines[-1].endswith("; run 39")


def test_a_results_file_continues_where_it_was_cut_off(tmp_path: Path) -> None:
    path, adapter, header = tmp_path / "new" / "results.jsonl", TypeAdapter(list[int]), {"steps": None}
    results = ResultsFile(path, adapter, header)
    results.append([1])
    results.append([2])
    with path.open("a") as file:
        file.write("[3,")
    again = ResultsFile(path, adapter, header)
    assert again.rows == [[1], [2]]
    again.append([4])
    assert ResultsFile(path, adapter, header).rows == [[1], [2], [4]]
    with pytest.raises(ConfigError, match="other options or by another bench"):
        ResultsFile(path, adapter, {"steps": 100})
    with pytest.raises(ConfigError, match="line 2, is not a result of this bench"):
        ResultsFile(path, TypeAdapter(list[None]), header)


def test_a_digest_changes_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = code_digest([tmp_path])
    (tmp_path / "a.py").write_text("x = 2\n")
    assert code_digest([tmp_path]) != before


def test_seeds_are_numbers_and_ranges() -> None:
    assert seed_list("100,3-5") == [100, 3, 4, 5]
    for wrong in ("1,x", ""):
        with pytest.raises(ConfigError, match="--seeds"):
            seed_list(wrong)


def test_the_word_for_a_difference_follows_its_interval() -> None:
    words = {(0.1, 0.3): "HELPS", (-0.3, -0.1): "HARMS", (-0.01, 0.01): "NO EFFECT", (-0.3, 0.3): "INCONCLUSIVE"}
    assert {ends: Interval(0.0, *ends).word(0.02) for ends in words} == words


def test_a_paired_difference_is_students_t() -> None:
    interval = paired([1.0, 2.0, 3.0], [0.5, 1.0, 1.5])
    assert (interval.mean, interval.low, interval.high) == pytest.approx((1.0, -0.2421, 2.2421), abs=1e-4)
    with pytest.raises(ValueError, match="at least 2 seeds"):
        paired([1.0], [2.0])


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_an_interval_contains_its_mean_and_lies_within_the_values(values: list[float]) -> None:
    interval = bootstrapped_mean(values)
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert interval.mean == pytest.approx(fmean(values), abs=1e-9)
    assert interval == bootstrapped_mean(values), "the same resamples at each call"


def test_the_best_baseline_is_found_anew_in_each_resample() -> None:
    best, interval = difference_to_best([0.5] * 8, {"a": [0.0, 1.0] * 4, "b": [1.0, 0.0] * 4})
    assert best == "a" and interval.mean == 0.0 and interval.high <= 0.0


def test_a_slowdown_that_every_block_shows_has_a_narrow_interval() -> None:
    off = [[0.005 + block / 1e5] * 10 for block in range(20)]
    every = ratio_of_blocks([[step * 1.02 for step in block] for block in off], off, draws=500)
    assert (every.mean, every.low, every.high) == pytest.approx((1.02, 1.02, 1.02))
    outlier = ratio_of_blocks([[0.005] * 10] * 19 + [[0.05] * 10], [[0.005] * 10] * 20, draws=2000)
    assert outlier.mean == pytest.approx(1.45) and outlier.low == pytest.approx(1.0) and outlier.high > 1.8


def test_quantiles_are_values_that_were_observed() -> None:
    assert [observed_quantile([5.0, 1.0, 3.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 5, 5]
