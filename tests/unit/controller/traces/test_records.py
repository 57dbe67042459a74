"""Records: states without quadratic storage, files with bad lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oven_core.errors import ConfigError
from oven_runs.traces import jsonl
from oven_runs.traces.formats.format_lookup import format_named
from oven_runs.traces.jsonl import BadLine
from oven_runs.traces.trace_records import Message, Task, ToolCall, Trace, TraceStep


def step(name: str, result: str, **more: object) -> TraceStep:
    call = ToolCall(id=name, name=name, arguments="{}")
    answer = Message(role="tool", content=result, call_id=name, name=name)
    return TraceStep.model_validate(
        {"action": Message(role="assistant", calls=(call,)), "result": (answer,), "reward": 0.0, **more}
    )


def trace(*steps: TraceStep, id: str = "t") -> Trace:
    return Trace(id=id, task=Task(id="task"), prompt=(Message(role="user", content="go"),), steps=steps)


def test_a_state_has_all_messages_before_its_step() -> None:
    made = trace(step("a", "1"), step("b", "2"), step("c", "3"))
    assert [len(state) for state in made.states()] == [1, 3, 5]
    assert [made.state(index) for index in range(3)] == list(made.states())
    assert made.state(2)[-1].content == "2"
    with pytest.raises(IndexError, match="no step 3"):
        made.state(3)


def test_states_after_a_rewrite_extend_the_new_context() -> None:
    summary = (Message(role="user", content="go"), Message(role="user", content="so far: nothing"))
    made = trace(step("a", "1"), step("b", "2", state=summary), step("c", "3"))
    assert list(made.states())[1:] == [summary, (*summary, made.steps[1].action, *(made.steps[1].result or ()))]
    assert [made.state(index) for index in range(3)] == list(made.states())


def test_records_survive_writing_and_reading(tmp_path: Path) -> None:
    made = [trace(step("a", "é\u2028\x00"), id="1"), trace(id="2")]
    jsonl.write(tmp_path / "traces.jsonl", made)
    assert list(jsonl.read(tmp_path / "traces.jsonl")) == made
    assert json.loads((tmp_path / "traces.jsonl").read_bytes().splitlines()[0])["version"] == 1


def test_bad_lines_are_reported_by_kind(tmp_path: Path) -> None:
    good = jsonl.to_line(trace()).decode()
    lines = [
        good,
        "\n",
        "{nothing\n",
        "[1]\n",
        good.replace('"version":1', '"version":2'),
        good.replace('"kind":"trace"', '"kind":"reply"'),
        good.replace('"id":"t"', '"id":3'),
        good.replace('"id":"t"', '"id":"t","reward":NaN'),
        "[" * 100_000 + "\n",
        good[:-9],
    ]
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(lines))
    bad_lines = [(item.number, item.fault) for item in format_named("oven").read(path) if isinstance(item, BadLine)]
    assert bad_lines == [
        (3, "not_json"),
        (4, "not_json"),
        (5, "foreign_version"),
        (6, "malformed"),
        (7, "malformed"),
        (8, "malformed"),
        (9, "not_json"),
        (10, "cut"),
    ]
    with pytest.raises(ConfigError, match="line 3: not json"):
        list(jsonl.read(path))


def test_an_unfinished_last_line_is_removed_by_append(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(jsonl.to_line(trace(id="1")) + jsonl.to_line(trace(id="2"))[:-20])
    with pytest.raises(ConfigError, match="line 2: cut"):
        list(jsonl.read(path))
    jsonl.append(path, trace(id="3"))
    assert [item.id for item in jsonl.read(path)] == ["1", "3"]


def test_append_waits_for_a_line_that_another_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, line = tmp_path / "traces.jsonl", jsonl.to_line(trace(id="1"))
    with path.open("ab", buffering=0) as changed:
        changed.write(line[:10])
        monkeypatch.setattr("fcntl.flock", lambda *_: changed.write(line[10:]))  # it has the lock until it has written
        jsonl.append(path, trace(id="2"))
    assert [item.id for item in jsonl.read(path)] == ["1", "2"]
