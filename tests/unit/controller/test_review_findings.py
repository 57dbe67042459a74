"""`review`: what is wrong with runs, as text, JSON and HTML, with exit codes, and with files that cannot be read."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from tests.support.own_home import invoke, own_home
from tests.support.simulated_curves import NO_VALUE, clear_overfit, constant_rate, flat_loss, jump

from oven_runs.home.run_folder import Home

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "protocol" / "review.schema.json").read_text())
ROWS = 200
Read = Callable[..., Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture
def as_json(capsys: pytest.CaptureFixture[str]) -> Read:
    def read(*args: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert invoke("review", *args, "--json") == code
        report = json.loads(capsys.readouterr().out)
        if "--agent" not in args:
            jsonschema.validate(report, SCHEMA)
        return report

    return read


def write(name: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Write the curves as a CSV file to the current folder."""
    cells = [["" if value == NO_VALUE else repr(value) for value in values] for values in curves.values()]
    rows = [",".join((str(step), *row)) for step, row in enumerate(zip(*cells, strict=True), 1)]
    Path(name).write_text("\n".join([",".join(("step", *curves)), *rows]) + "\n")
    return name


def ill() -> str:
    return write("ill.csv", jump(ROWS, 0.6, random.Random(1)))


def doubtful() -> str:
    return write("doubtful.csv", flat_loss(ROWS, 0.0, random.Random(1)))


def healthy() -> str:
    return write("healthy.csv", constant_rate(ROWS, random.Random(1)))


def test_one_file_is_one_object_that_names_the_fault(as_json: Read) -> None:
    report = as_json(ill())
    assert (report["run"], report["first_step"], report["last_step"]) == ("ill.csv", 1, ROWS)
    first = report["findings"][0]
    assert {"kind", "onset_step", "severity", "confidence", "message", "remedy"} <= first.keys()
    assert (first["kind"], first["severity"]) == ("diverged", "act") and abs(first["onset_step"] - 121) <= 10
    assert 0.8 <= first["confidence"] <= 1 and "rose from" in first["message"] and "checkpoint" in first["remedy"]


def test_one_file_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("review", ill()) == 0
    text = capsys.readouterr().out
    assert "act: diverged since step 12" in text and "remedy: go back to a checkpoint" in text
    assert invoke("review", healthy()) == 0
    assert "Nothing needs action" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [{"findings": None}, {"observations": 0}, {"run": None}])
def test_the_schema_rejects_another_shape(as_json: Read, fault: dict[str, Any]) -> None:
    report = as_json(ill())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report | fault, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"runs": [report | fault]}, SCHEMA)


def test_several_files_are_a_table_and_a_list(as_json: Read, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [ill(), doubtful(), healthy()]
    assert invoke("review", *sources) == 0
    table = capsys.readouterr().out.splitlines()
    by_run = {line.split()[0]: line for line in table if line.strip()}
    assert "act: diverged" in by_run["ill.csv"] and "advise: stuck" in by_run["doubtful.csv"]
    assert "nothing" in by_run["healthy.csv"]
    report = as_json(*sources)
    assert [run["run"] for run in report["runs"]] == sources
    assert [{f["kind"] for f in run["findings"] if f["severity"] != "note"} for run in report["runs"]] == [
        {"diverged"}, {"stuck"}, set(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "act", "advise"), [(ill, 1, 1), (doubtful, 0, 1), (healthy, 0, 0)], ids=["ill", "doubtful", "healthy"]
)
def test_exit_codes_for_scripts(make: Callable[[], str], act: int, advise: int) -> None:
    source = make()
    assert invoke("review", source) == 0
    assert invoke("review", source, "--fail-on", "act") == act
    assert invoke("review", source, "--fail-on", "advise") == advise
    assert invoke("review", healthy(), source, "--fail-on", "advise", "--json") == advise


def test_an_unreadable_file_does_not_hide_the_others(as_json: Read, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.csv").touch()
    sources = [ill(), "empty.csv", "missing.csv"]
    assert invoke("review", *sources, "--fail-on", "act") == 2
    output = capsys.readouterr().out
    assert "act: diverged" in output and "cannot be read" in output
    runs = as_json(*sources, code=2)["runs"]
    assert runs[0]["findings"] and [run["run"] for run in runs if "error" in run] == sources[1:]


def test_the_page_is_well_formed_and_marks_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    overfit = clear_overfit(ROWS, 0.4, random.Random(2))
    hostile = {"<script>alert(1)</script>&loss": [math.nan] * ROWS, '"q"': [1.0] * ROWS}
    assert invoke("review", write("a&<b>.csv", overfit | hostile), ill(), "--html", "page.html") == 0
    page = Path("page.html").read_text()
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert not list(root.iter("script")) and "<b>.csv" not in page
    headings = ["".join(element.itertext()) for element in root.iter("h2")]
    assert headings == ["a&<b>.csv", "ill.csv"]
    text = "".join(root.itertext())
    assert "overfit" in text and "Remedy:" in text and "diverged" in text
    figures = {str(f.findtext("figcaption")).split(";")[0]: f for f in root.iter("figure")}
    assert {"loss", "eval/loss"} <= figures.keys()
    marks = [group for group in figures["eval/loss"].iter("g") if group.get("class") == "harm"]
    assert len(marks) == 1 and "was best at step" in str(marks[0].findtext("title"))
    line = next(marks[0].iter("line"))
    assert 0.3 < (float(line.get("x1", "0")) - 64) / (900 - 64 - 8) < 0.5, "the mark is near 40 % of the run"


def test_a_page_of_a_healthy_run_says_so() -> None:
    assert invoke("review", healthy(), "--html", "page.html") == 0
    page = Path("page.html").read_text()
    assert "Review of healthy.csv" in page and "Nothing needs action" in page
    assert invoke("review", healthy(), "--html", "nowhere/page.html") == 2


def test_agents_still_show_what_they_would_have_flagged(as_json: Read, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(ill(), "--agent", "all")
    assert "flags" in report and "findings" not in report
    assert invoke("review", ill(), healthy(), "--agent", "all") == 2
    assert "one run at a time" in capsys.readouterr().err
    assert invoke("review", ill(), "--agent", "all", "--fail-on", "act") == 2
    assert "omit one of them" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--no-assume",), ("--set", "autonomy=auto"), ("--knob", "optimizer.lr_scale")])
def test_options_for_agents_need_an_agent(options: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("review", ill(), *options) == 2
    error = capsys.readouterr().err
    assert "add --agent NAME" in error and "Traceback" not in error


UNREADABLE: dict[str, bytes] = {
    "empty.csv": b"",
    "empty.jsonl": b"",
    "header.csv": b"step,loss\n",
    "binary.csv": bytes(range(256)) * 20,
    "binary.log": bytes(range(256)) * 20,
    "words.csv": b"step,loss\n1,high\n2,low\n",
    "prose.txt": b"it went well\nand then it did not\n",
    "cut.json": b'{"log_history": [{"step": 1, "lo',
    "trainer_state.json": b'{"log_history": []}',
    "events.out.tfevents.1.host": b"\x00" * 64,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_without_measurements_is_refused_in_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(UNREADABLE[name])
    assert invoke("review", name) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and name in captured.err and len(captured.err.splitlines()) <= 3
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err


def test_a_folder_without_logs_is_refused_with_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nothing").mkdir()
    assert invoke("review", "nothing") == 2
    assert "nothing has no training log; supported are" in capsys.readouterr().err


def test_a_log_of_one_row_says_that_it_is_short(as_json: Read) -> None:
    report = as_json(write("one.csv", {"loss": [2.0]}))
    assert report["findings"] == [] and "loss has 1 reading, and they need 8" in report["unjudged"]


def test_a_log_of_nan_only_is_a_finding(as_json: Read) -> None:
    findings = as_json(write("nan.csv", {"loss": [math.nan] * 50}))["findings"]
    assert findings[0]["kind"] == "nan" and findings[0]["severity"] == "act"
    assert "in all 50 readings" in findings[0]["message"] and "start again" in findings[0]["remedy"]


def test_unknown_columns_are_named_with_a_way_out(as_json: Read) -> None:
    report = as_json(write("own.csv", {"foo": [1.0 * n for n in range(50)], "bar": [0.5] * 50}))
    assert not [finding for finding in report["findings"] if finding["severity"] != "note"]
    assert any("--rename NAME=loss" in note for note in report["notes"])
    renamed = as_json("own.csv", "--rename", "foo=loss")
    assert renamed["observations"] == 50
