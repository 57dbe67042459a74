"""What is said to a person of an error that is not ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from oven_controller.cli.main import run
from oven_controller.cli.operator import parse_value
from oven_core.errors import ConfigError, OvenError, UnknownNameError, reason
from oven_learner.actuators import Actuators
from oven_llm.judges.member_process import look_up_judge
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import ServerFolder, User

CLASS = re.compile(r"\b[A-Z]\w+(Error|Exception)\b|\bRunInfo\b|\[Errno|validation error")


def raised(by: Any, *args: Any) -> BaseException:
    try:
        by(*args)
    except Exception as error:
        return error
    raise AssertionError(f"{by} raised nothing")


def test_a_reason_is_one_line_without_class_or_error_number(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert reason(raised(missing.read_text)) == f"No such file or directory: {missing}"
    assert reason(raised(User.model_validate, {"name": "r", "completions": "x"})) == "role: Field required (and 2 more)"
    assert reason(raised(User.model_validate_json, "{")).startswith("Invalid JSON: EOF while parsing")
    assert reason(raised({}.__getitem__, "committee")) == "'committee' is missing"
    assert reason(ValueError("one\n  two")) == "one two"
    assert reason(TimeoutError()) == "timeout error"
    assert reason(RecursionError("maximum recursion depth exceeded")) == "it is nested too deeply"


def test_no_message_names_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    folder = Home().create("r", "toy")
    knobs = Actuators()
    settings: dict[float | None, float] = {}
    knobs.action("run.rollback", settings.__getitem__)
    (folder.server.folder).mkdir()
    (folder.server.folder / "users.json").write_text('[{"name": 1}]')
    folder.config.write_text('{"committee": {}}')
    texts = [
        str(raised(look_up_judge, folder.config, "judge")),
        str(raised(ServerFolder(folder.server.folder, "r").users)),
        knobs.apply("run.rollback", 5.0).reason,
    ]
    (folder.path / "run.json").write_text('{"run": 1}')
    texts.append(str(raised(folder.info)))
    assert all(isinstance(raised(call), OvenError) for call in (folder.info, folder.server.users))
    assert not [text for text in texts if CLASS.search(text) or "\n" in text]


@pytest.mark.parametrize(
    ("kind", "name", "known", "hint"),
    [
        ("recipe", "nope", ["oracle", "grpo"], "known: grpo, oracle"),
        ("recipe", "orcale", ["oracle", "grpo"], "did you mean 'oracle'?"),
        ("knob", "grad", ["grad.clip", "teacher.active"], "did you mean 'grad.clip'?"),
        ("agent", "nope", map(str, range(11)), "find one of the 11 with `oven-controller agent list`"),
        ("run", "nope", [], "there is no run yet"),
    ],
)
def test_only_similar_names_are_suggested(kind: str, name: str, known: list[str], hint: str) -> None:
    assert str(UnknownNameError(kind, name, known)) == f"no {kind} named {name!r}; {hint}"


def test_deeply_nested_input_has_a_reason() -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        parse_value("[" * 5000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no run named"),
        ("{}", "has no usable measurements"),
        ("[" * 5000 + "\n", "line 1 is not JSON"),
    ],
)
def test_the_command_line_prints_no_error_class(
    tmp_path: Path, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        run(["calibration", str(path)])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and words in error and not CLASS.search(error) and error.count("\n") == 1
