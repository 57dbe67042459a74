"""`traces pairs | gate`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.support.scripted_replay import PLANTED, scripted

from oven_controller.cli.main import run
from oven_runs.traces import jsonl
from oven_runs.traces.records import Message, Pair, Reply


def command(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        run(["traces", *map(str, args)])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Traces and replies of scripted teachers."""
    folder = tmp_path_factory.mktemp("replay")
    replay = scripted(PLANTED, 80, random.Random(5))
    jsonl.write(folder / "traces.jsonl", replay.traces)
    jsonl.write(folder / "replies.jsonl", replay.replies)
    return folder / "traces.jsonl", folder / "replies.jsonl"


def test_pairs_are_written_and_reported(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pairs.jsonl"
    code, output, _ = command(capsys, "pairs", *files, "--out", out, "--permutations", 99, "--json")
    result, written = json.loads(output), list(jsonl.read(out, Pair))
    assert code == 0
    assert result["pairs"] == len(written) == sum(result["rules"].values())
    assert result["pairs"] + sum(result["abstentions"].values()) == result["states"] == 80
    assert result["kl_p"] < 0.05
    _, output, _ = command(capsys, "pairs", *files, "--permutations", 19)
    assert "(target: 5)" in output


def test_gates_are_reported(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = command(capsys, "gate", *files, "--json")
    result = json.loads(output)
    assert code == 0
    assert {name for name, item in result["gates"].items() if item} == {"random"}
    assert result["unit"] == "usd" and set(result["not_judged"]) == {"entropy", "disagreement", "failed"}
    assert "all states have the same score" in result["not_judged"]["entropy"]
    code, output, _ = command(capsys, "gate", *files, "--cheap", "b")
    assert "tiers: b first" in output
    assert "disagreement     not judged: no step has further samples" in output


@pytest.mark.parametrize(
    ("change", "output"),
    [
        ("one family", "all replies with an action are of one family, 'a', and a pair"),
        ("one answered", "of one family, 'a' (all of b, c failed: run `traces replay` again), and a pair"),
        ("none answered", "most failed with 'timeout': fix that"),
        ("strangers", "is to a trace of"),
        ("changed", "its traces have changed since the replay"),
        ("empty", "is empty"),
        ("version", "foreign version: version 7; this reads 1"),
        ("twice", "two traces have the id 't0'"),
        ("teacher", "no teacher named 'z'"),
    ],
)
def test_bad_input_ends_with_2_and_a_remedy(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, output: str
) -> None:
    traces, source = files
    replies = list(jsonl.read(source, Reply))
    changes: dict[str, dict[str, object]] = {
        "one family": {"family": "a"}, "strangers": {"trace": "x"}, "changed": {"state": "0" * 16},
    }  # fmt: skip
    failed = {"one answered": ("b", "c"), "none answered": ("a", "b", "c")}.get(change, ())
    path = tmp_path / "replies.jsonl"
    out = tmp_path / "pairs.jsonl"
    made = [item.model_copy(update=changes.get(change, {})) for item in replies]
    failure = {"action": None, "failure": "timeout"}
    jsonl.write(path, [item.model_copy(update=failure if item.family in failed else {}) for item in made])
    if change == "empty":
        path.write_text("")
    elif change == "version":
        path.write_text(path.read_text().replace('"version":1', '"version":7'))
    elif change == "twice":
        doubled = tmp_path / "traces.jsonl"
        doubled.write_bytes(traces.read_bytes() * 2)
        traces = doubled
    more = ["--teacher", "z"] if change == "teacher" else []
    code, _, err = command(capsys, "pairs", traces, path, "--out", out, *more)
    assert code == 2 and not out.exists()
    assert output in " ".join(err.split())


def test_a_teacher_without_tool_calls_is_named_and_an_unfinished_line_is_skipped(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, source = files
    text = Message(role="assistant", content="I would read the file")
    replies = [
        item.model_copy(update={"action": text}) if item.teacher == "c" else item for item in jsonl.read(source, Reply)
    ]
    path = tmp_path / "replies.jsonl"
    jsonl.write(path, replies)
    path.write_bytes(path.read_bytes()[:-10])
    code, output, _ = command(capsys, "pairs", traces, path, "--permutations", 19)
    assert code == 0
    assert "c made no call in 79 replies: does its model support tools?" in output
