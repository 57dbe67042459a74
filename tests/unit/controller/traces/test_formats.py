"""Formats: what is written comes back; files of others are read, and written as they were."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support.traces import REPAIR, traces

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.traces.formats.format_lookup import FORMATS, detect_format, format_named
from oven_runs.traces.jsonl import BadLine
from oven_runs.traces.trace_records import Message, Trace

NAMES = list(FORMATS)
LOSSLESS = [name for name in NAMES if name != "chat"]


def read(name: str, path: Path) -> list[Trace]:
    result = list(format_named(name).read(path))
    assert not [item for item in result if isinstance(item, BadLine)]
    return [item for item in result if isinstance(item, Trace)]


def target_path(name: str, folder: Path) -> Path:
    return folder if name == "mini-swe-agent" else folder / "traces.jsonl"


@settings(max_examples=15)
@given(trace=traces)
def test_a_trace_survives_each_lossless_format(trace: Trace) -> None:
    with TemporaryDirectory() as folder:
        for name in LOSSLESS:
            path = target_path(name, Path(folder))
            item = trace.model_copy(update={"id": "one"}) if name == "mini-swe-agent" else trace
            assert format_named(name).write(path, [item]) == 1
            assert read(name, path) == [item], name


@settings(max_examples=15)
@given(trace=traces)
def test_a_chat_row_keeps_each_conversation_and_loses_the_listed_fields(trace: Trace) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chat.jsonl"
        format_named("chat").write(path, [trace])
        result = read("chat", path)
    starts = [number for number, step in enumerate(trace.steps) if number == 0 or step.state is not None]
    ends = [*starts[1:], len(trace.steps)]
    assert len(result) == max(1, len(starts))
    for item, start, end in zip(result, starts, ends, strict=True) if starts else ():
        last = trace.steps[end - 1]
        wanted = (*trace.state(end - 1), last.action, *(last.result or ()))
        flat = [*item.prompt]
        for step in item.steps:
            flat += (step.action, *(step.result or ()))
        assert len(trace.state(start)) <= len(flat)
        assert tuple(flat) == wanted
    assert all(item.tools == trace.tools and item.reward is None and item.solved is None for item in result)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_trace_is_recognised_and_keeps_its_states(tmp_path: Path, name: str) -> None:
    path = target_path(name, tmp_path)
    format_named(name).write(path, [REPAIR])
    assert detect_format(path)[0] == name
    (result,) = read(name, path)
    assert list(result.states()) == list(REPAIR.states())
    assert [step.action for step in result.steps] == [step.action for step in REPAIR.steps]
    assert result.tools == REPAIR.tools


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


OPENENV: dict[str, Any] = {
    "episode_id": "ep-000001",
    "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "guess", "arguments": '{"word": "crane"}'}}]},
        {"role": "tool", "tool_call_id": "1", "name": "guess", "content": "yes"},
    ],
    "reward": 1,
    "done": True,
    "tool_trace": [{"tool_name": "guess", "arguments": {"word": "crane"},
                    "result": {"data": "yes", "done": True, "metadata": {}, "error": None}}],
    "metrics": {"turns": 1}, "verify_metrics": {"green": 5}, "artifacts": {}, "task": {"seed": 3},
    "extra": {"host": "a"},
}  # fmt: skip
VERIFIERS: dict[str, Any] = {
    "id": "e1", "env": {"id": "swe"}, "task": {"type": "Swe", "data": {"id": "x__y-1", "prompt": "fix"}}, "ok": True,
    "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 9, "policy": {"start": 7, "end": 8}}},
    "traces": [{
        "version": 1, "id": "t1", "task": {"type": "Swe", "data": {"id": "x__y-1", "prompt": "fix"}},
        "agent": {"config": {"model": "small"}, "name": "agent"},
        "nodes": [
            {"message": {"role": "user", "content": "fix"}, "token_ids": [1, 2], "mask": [False, False],
             "tools": [{"type": "function", "name": "bash", "description": "", "parameters": {"type": "object"}}]},
            {"parent": 0, "sampled": True, "token_ids": [3, 4, 5], "mask": [False, True, True],
             "logprobs": [-0.5, -1.0],
             "message": {"role": "assistant", "content": "a", "tool_calls": [
                 {"id": "1", "type": "function", "name": "bash", "arguments": "{}"}]}},
            {"parent": 1, "message": {"role": "tool", "tool_call_id": "1", "content": [
                {"type": "text", "text": "ok"}]}},
            {"parent": 0, "message": {"role": "user", "content": "so far: ok"}},
            {"parent": 3, "sampled": True, "message": {"role": "assistant", "content": "done"}},
        ],
        "rewards": {"solved": {"score": 1.0, "weight": 0.5}, "style": {"score": 0.5, "weight": 0.5}, "late": None},
        "is_completed": True, "ok": True, "stop_condition": "agent_completed", "errors": [],
    }],
}  # fmt: skip
MINI: dict[str, Any] = {
    "info": {"model_stats": {"instance_cost": 0.5, "api_calls": 1}, "exit_status": "Submitted", "submission": "diff",
             "config": {"model": {"model_name": "m"}}, "mini_version": "2.4.6"},
    "instance_id": "x__y-1",
    "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "extra": {"cost": 0.5}, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "a.py", "extra": {"returncode": 0}},
        {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
}  # fmt: skip


def test_an_openenv_episode_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(OPENENV) + "\n")
    assert detect_format(tmp_path)[0] == "openenv"
    (result,) = read("openenv", tmp_path)
    assert (result.reward, result.ended, result.solved) == (1.0, "submitted", None)
    assert [step.reward for step in result.steps] == [None], "one reward an episode is no step's"
    assert result.task.data == {"seed": 3}
    format_named("openenv").write(tmp_path / "again.jsonl", [result])
    (again,) = lines(tmp_path / "again.jsonl")
    assert {**again, "task": 0, "extra": 0} == {**OPENENV, "task": 0, "extra": 0}
    assert again["extra"] == {"host": "a"}, "it has a place for all that it had"


def test_a_verifiers_graph_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(VERIFIERS) + "\n")
    assert detect_format(tmp_path)[0] == "verifiers"
    (result,) = read("verifiers", path)
    first, second = result.steps
    assert (result.reward, result.ended) == (0.75, "submitted")
    assert result.policy.model == "small"
    assert result.policy.step == 7
    assert first.sampled is not None
    assert (first.sampled.ids, first.sampled.logprobs) == ((4, 5), (-0.5, -1.0)), "without the template's tokens"
    assert first.result == (Message(role="tool", content="ok", call_id="1"),)
    assert second.state == (Message(role="user", content="fix"), Message(role="user", content="so far: ok"))
    format_named("verifiers").write(tmp_path / "again.jsonl", [result])
    (again,), (wanted,) = lines(tmp_path / "again.jsonl")[0]["traces"], VERIFIERS["traces"]
    assert [node["parent"] for node in again["nodes"]] == [None, 0, 1, 0, 3]
    for name in ("id", "rewards", "ok", "is_completed", "stop_condition"):
        assert again[name] == wanted[name]


def test_a_mini_swe_agent_trajectory_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "x__y-1").mkdir()
    (tmp_path / "x__y-1" / "x__y-1.traj.json").write_text(json.dumps(MINI))
    assert detect_format(tmp_path)[0] == "mini-swe-agent"
    (result,) = read("mini-swe-agent", tmp_path)
    assert (result.id, result.task.id, result.ended, result.policy.model) == (
        "x__y-1",
        "x__y-1",
        "submitted",
        "m",
    )
    assert [tool.name for tool in result.tools] == ["bash"]
    assert result.steps[0].result == (Message(role="tool", content="a.py", call_id="1"),)
    format_named("mini-swe-agent").write(tmp_path / "again", [result])
    again = json.loads((tmp_path / "again" / "x__y-1" / "x__y-1.traj.json").read_text())
    assert again["info"] == MINI["info"]
    assert [item["role"] for item in again["messages"]] == ["system", "user", "assistant", "tool", "exit"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("openenv", {**OPENENV, "messages": [{"role": "exit", "content": ""}]}, "role: Input should be"),
        ("openenv", {**OPENENV, "messages": [7]}, "a message is a int"),
        ("openenv", {**OPENENV, "reward": float("nan")}, "finite"),
        ("openenv", {**OPENENV, "extra": {"oven": {"of": 9}}}, "another list of messages"),
        ("verifiers", {**VERIFIERS, "traces": [{**VERIFIERS["traces"][0], "version": 2}]}, "version 2"),
        ("verifiers", {**VERIFIERS, "traces": [{"nodes": [{"parent": 0}]}]}, "must come before"),
        ("verifiers", {**VERIFIERS, "traces": [{"task": {"type": "Swe"}}]}, "no task"),
        (
            "chat",
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "name: Input should be a valid string",
        ),
        ("chat", {"messages": [{"role": "user", "content": 7}]}, "content is a int"),
    ],
)
def test_a_malformed_row_is_reported_and_the_next_is_read(
    tmp_path: Path, name: str, row: dict[str, Any], message: str
) -> None:
    format_named(name).write(tmp_path / "good.jsonl", [REPAIR])
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row) + "\n" + (tmp_path / "good.jsonl").read_text())
    bad, good = format_named(name).read(path)
    assert isinstance(bad, BadLine)
    assert message in bad.detail
    assert isinstance(good, Trace)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="is not in a known trace format"):
        detect_format(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        detect_format(path)
    with pytest.raises(ConfigError, match="is not in a known trace format"):
        detect_format(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        detect_format(tmp_path / "y")
    with pytest.raises(UnknownNameError, match="verifiers"):
        format_named("verifier")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("openenv", {"episode_id": "a", "messages": [], "metrics": [1]}),
        ("verifiers", {"task": {"data": {"id": "a"}}, "traces": [{"id": "a"}], "run": ["b"]}),
        ("mini-swe-agent", {"trajectory_format": "mini-swe-agent-1.1", "info": {"config": "c"}, "messages": []}),
    ],
)
def test_a_field_of_unexpected_form_makes_a_bad_line_and_no_traceback(name: str, row: Any, tmp_path: Path) -> None:
    path = tmp_path / ("one.traj.json" if name == "mini-swe-agent" else "traces.jsonl")
    path.write_text(json.dumps(row) + "\n")
    (result,) = format_named(name).read(path)
    assert isinstance(result, BadLine) and result.fault == "malformed" and "an unexpected form" in result.detail


def test_parts_other_than_text_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    path.write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}) + "\n")
    assert read("chat", path)[0].meta == {"chat": {"lost": {"a part of type image_url": 1}}}
