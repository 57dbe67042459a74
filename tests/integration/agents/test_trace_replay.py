"""`traces replay` and `traces cost` over real HTTP: resumed, capped, given up, foretold."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command_line import call
from tests.support.made_traces import made_traces
from tests.support.teacher_endpoint import TeacherEndpoint

from oven_core.errors import ConfigError
from oven_llm.trace_replay.replies_file import RepliesFile
from oven_llm.trace_replay.teachers_file import read_teachers
from oven_runs.traces import jsonl
from oven_runs.traces.records import Reply, Trace

PRICE = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
TRACES = made_traces(4, 3, seed=1)
STATES = 12


@pytest.fixture(scope="module")
def endpoint() -> Iterator[TeacherEndpoint]:
    """In a thread of its own: the commands have the main thread's loop."""
    made, ready, loop = TeacherEndpoint(1), threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with made.running():
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    yield made
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


class Folder:
    """Traces, teachers and replies of one test."""

    def __init__(self, path: Path, url: str) -> None:
        self.traces, self.teachers, self.replies = (path / name for name in ("t.jsonl", "teachers.yaml", "r.jsonl"))
        self._url = url
        jsonl.write(self.traces, TRACES)

    def teach(self, *models: str, budget: dict[str, Any] | None = None, **more: Any) -> None:
        """A teacher for each model; one whose name has `claude` in it is asked through Anthropic's SDK."""
        output = {}
        for model in models:
            claude = "claude" in model
            output[model.split("-")[1]] = {
                "family": model.split("-")[1],
                "provider": "claude" if claude else "compatible",
                "model": model,
                "base_url": self._url if claude else f"{self._url}/v1",
                "max_tokens": 50,
                "lanes": 2,
                "price": PRICE,
            } | more
        self.teachers.write_text(yaml.safe_dump({"teachers": output, "budget": budget or {}}))

    def replay(self, *options: str) -> int:
        return call(
            "traces replay",
            [str(self.traces), "--teachers", str(self.teachers), "--out", str(self.replies), "--json", *options],
        )

    def cost(self) -> int:
        return call(
            "traces cost",
            [str(self.traces), "--teachers", str(self.teachers), "--replies", str(self.replies), "--json"],
        )

    def read(self) -> list[Reply]:
        return list(jsonl.read(self.replies, Reply))


@pytest.fixture
def folder(tmp_path: Path, endpoint: TeacherEndpoint) -> Folder:
    return Folder(tmp_path, endpoint.url)


def output(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_first_part_gives_a_forecast_and_nothing_is_paid_twice(
    folder: Folder, endpoint: TeacherEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.teach("teacher-whole-80-30", "teacher-claudish-70-30-claude", samples=2)
    assert folder.replay("--first", "2") == 0
    first = output(capsys)
    assert first["traces"] == first["whole_traces"] == 2 and first["usd_per_trace"] > 0
    assert folder.cost() == 0
    foretold = output(capsys)
    assert {item["states"] for item in foretold["teachers"].values()} == {6}
    before = endpoint.bills.tokens["teacher-whole-80-30"].copy()
    assert folder.replay() == 0
    whole = output(capsys)
    assert whole["left"] == 0 and whole["this_call"]["asked"] == 12 and whole["whole_traces"] == 4
    billed = endpoint.bills.tokens["teacher-whole-80-30"] - before
    teacher_report = foretold["teachers"]["whole"]
    assert teacher_report["tokens_in"] == pytest.approx(billed["input"], rel=0.1)
    usd = sum(reply.usd or 0 for reply in folder.read())
    assert foretold["usd"] + foretold["spent"] == pytest.approx(usd, rel=0.1)
    assert foretold["low"] <= foretold["usd"] <= foretold["high"]

    replies = folder.read()
    assert len(replies) == 2 * 2 * STATES and {reply.sample for reply in replies} == {0, 1}
    assert all(reply.action is not None and reply.tokens_in and reply.usd for reply in replies)
    digests = {trace.id: trace.digests() for trace in TRACES}
    assert all(digests[reply.trace][reply.step] == reply.state for reply in replies)
    message = [json.loads(reply.action.calls[0].arguments)["state"] for reply in replies if reply.action]
    assert message == [f"{reply.trace}s{reply.step:03}" for reply in replies]
    assert sum(reply.tokens_cached for reply in replies if reply.family == "whole") > 0

    request = len(endpoint.requests)
    assert folder.replay() == 0 and len(endpoint.requests) == request
    assert output(capsys)["this_call"]["asked"] == 0


def test_a_cap_also_holds_for_the_next_run(
    folder: Folder, endpoint: TeacherEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.teach("teacher-capped-80-30", budget={"calls": 5})
    assert folder.replay() == 1
    result = output(capsys)
    assert "budget.calls is 5" in result["this_call"]["stopped"] and result["left"] == STATES - 5
    assert len(folder.read()) == 5
    assert folder.replay() == 1 and output(capsys)["this_call"]["asked"] == 0
    assert endpoint.bills.tokens["teacher-capped-80-30"]["output"] == sum(reply.tokens_out for reply in folder.read())


@pytest.mark.parametrize(("script", "why"), [("401x99", "auth"), ("400x99", "does the model support tools")])
def test_a_refusing_teacher_is_given_up_and_the_others_continue(
    folder: Folder, capsys: pytest.CaptureFixture[str], script: str, why: str
) -> None:
    folder.teach(f"teacher-refuses-80-30@{script}", "teacher-goes-80-30")
    assert folder.replay() == 1
    result = output(capsys)
    assert why in result["this_call"]["given_up"]["refuses"]
    assert result["teachers"]["goes"]["answered"] == STATES and result["teachers"]["refuses"]["answered"] == 0
    assert result["teachers"]["refuses"]["failures"].keys() <= {"auth", "bad_request"}


def test_states_in_flight_are_not_paid_again_without_the_option_again(
    folder: Folder, endpoint: TeacherEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.teach("teacher-killed-80-30@cutbodyx1,refusalx1")
    teachers = read_teachers(folder.teachers).teachers
    described = {name: teacher.described() for name, teacher in teachers.items()}
    killed = RepliesFile(folder.replies, TRACES, described, {"killed": "killed"})
    killed.begin(("killed", TRACES[0].id, 1))
    killed.close()
    with folder.replies.open("ab") as file:
        file.write(b'{"kind":"reply","version":1,"tra')  # its last write was cut off

    assert folder.replay() == 1
    result = output(capsys)
    assert result["this_call"]["interrupted_before"] == 1 and result["this_call"]["asked"] == STATES - 1
    assert result["teachers"]["killed"]["failures"] == {"interrupted": 1, "refusal": 1}
    assert result["this_call"]["faults_on_the_way"] == {"bad_response": 1} and result["left"] == 0
    assert folder.replay() == 1 and output(capsys)["this_call"]["asked"] == 0
    assert folder.replay("--again") == 0
    assert output(capsys)["this_call"]["asked"] == 2

    folder.teach("teacher-killed-80-30@cutbodyx1,refusalx1", temperature=0.5)
    with pytest.raises(ConfigError, match="with another temperature"):
        folder.replay()
    changed = TRACES[0].model_copy(update={"prompt": TRACES[1].prompt})
    jsonl.write(folder.traces, [Trace.model_validate(changed), *TRACES[1:]])
    folder.teach("teacher-killed-80-30@cutbodyx1,refusalx1")
    with pytest.raises(ConfigError, match="replies to another state"):
        folder.replay()
