"""`traces convert | check | show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.traces import REPAIR

from oven_controller.cli.main import run
from oven_runs.traces import completeness, jsonl
from oven_runs.traces.trace_records import Message, Sampled, ToolCall, Trace


def command(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        run(["traces", *map(str, args)])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    jsonl.write(tmp_path / "traces.jsonl", [REPAIR])
    return tmp_path / "traces.jsonl"


def test_check_reports_whether_a_file_is_whole(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "check", file, "--json")
    assert (code, json.loads(out)["whole_steps"]) == (0, 3)
    with file.open("a") as more:
        more.write("{nothing\n")
    code, out, _ = command(capsys, "check", file)
    assert code == 1
    assert "lines: 1: not json (e.g. line 2" in out


def test_missing_parts_of_steps_are_counted_by_kind() -> None:
    first, second, third = REPAIR.steps
    unknown = Message(role="assistant", calls=(ToolCall(id="c", name="write"),))
    steps = (
        first.model_copy(update={"reward": None}),
        second.model_copy(update={"action": unknown, "sampled": Sampled(ids=(1, 2), logprobs=(-1.0,))}),
        third.model_copy(update={"result": None}),
        third.model_copy(update={"result": ()}),
        third.model_copy(update={"action": Message(role="assistant")}),
    )
    changed: dict[str, object] = {"steps": steps, "ended": "truncated"}
    empty = Trace(id="repair-1", task=REPAIR.task)
    result = completeness.check([REPAIR.model_copy(update=changed), empty])
    assert result.steps_lacking == {
        "reward: only the whole trace has one": 1,
        "action: no call, text or tokens": 1,
        "tokens: a different number of log-probabilities or entropies": 1,
        "result: missing": 1,
        "state: an earlier result is missing": 2,
        "result: a call without an answer": 1,
    }
    assert result.unusable_actions == {"unknown_tool": 1, "no_action": 1}
    assert result.traces_lacking == {
        "no steps": 1,
        "no prompt": 1,
        "how it ended is unknown": 1,
        "no reward": 1,
        "another trace has the same id": 1,
    }
    assert (result.whole_traces, result.whole_steps, result.is_whole) == (0, 0, False)
    assert not completeness.check([REPAIR.model_copy(update={"ended": "truncated"})]).is_whole
    assert not completeness.check([]).is_whole


def test_convert_names_a_bad_line_or_skips_it(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with file.open("a") as more:
        more.write('{"kind": "trace", "version": 9}\n')
    code, _, err = command(capsys, "convert", file, tmp_path / "a.jsonl")
    assert code == 2
    assert "line 2: foreign version: version 9, but this program reads version 1" in err
    assert "--skip-bad" in err
    assert not (tmp_path / "a.jsonl").exists()
    code, out, _ = command(capsys, "convert", file, tmp_path / "a.jsonl", "--skip-bad")
    assert (code, "bad lines skipped: 1" in out) == (0, True)


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (("convert", "FILE", "FILE"), "is also the source"),
        (("convert", "FILE", "no/such/folder/x"), "there is no folder"),
        (("convert", "FILE", ".", "--to", "chat"), "is a folder"),
        (("convert", "FILE", "/proc/x"), "cannot write /proc/x"),
        (("convert", "FILE", "x", "--to", "verifier"), "did you mean 'verifiers'"),
        (("check", "nothing.jsonl"), "no such file"),
        (("show", "FILE", "repair-2"), "did you mean 'repair-1'"),
    ],
)
def test_wrong_arguments_exit_with_2_and_a_remedy(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], output: str
) -> None:
    monkeypatch.chdir(file.parent)
    code, _, err = command(capsys, *(str(file) if item == "FILE" else item for item in args))
    assert code == 2
    assert output in " ".join(err.split())


def test_show_prints_traces_without_control_characters(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = (Message(role="user", content="red \x1b[31m\n" + "line\n" * 30),)
    jsonl.append(file, REPAIR.model_copy(update={"id": "two", "prompt": prompt}))
    code, out, _ = command(capsys, "show", file)
    assert (code, len(out.splitlines())) == (0, 2)
    _, out, _ = command(capsys, "show", file, "two")
    assert "\x1b" not in out
    assert 'does: edit({"path": "median.py", "old": "n // 2", "new": "(n - 1) // 2"})' in out
    assert "(19 more lines; use --whole to see them)" in out
    assert len(command(capsys, "show", file, "two", "--whole")[1].splitlines()) > len(out.splitlines())
    _, out, _ = command(capsys, "show", file, "two", "--json")
    assert Trace.model_validate_json(out).id == "two"
