"""`supervise diagnose` on a run's log and another training's: alone, with a model over HTTP, and on bad input."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import call
from tests.support.installed import installed
from tests.support.judge_endpoint import Endpoint
from tests.support.supervised import HONEST, KEY, ONSET, SCALE, TICKS, observed, program, started

from oven_core.errors import ConfigError
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import LearnerMessage, Observation, RunStarted
from oven_core.protocol.subjects import learner_subject

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]


def written(folder: Path, bodies: list[RunStarted | Observation]) -> str:
    def event(seq: int, body: LearnerMessage) -> Event:
        return Event.read(seq, learner_subject("r", body), body.wire(), UNKNOWN_TIME)

    file = folder / "log.jsonl"
    file.write_text("".join(f"{event(seq, body).line()}\n" for seq, body in enumerate(bodies, 1)))
    return str(file)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return written(tmp_path, [started(), *map(observed, range(1, TICKS + 1))])


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Served on a loop of its own: the command runs one itself."""
    made, stop, ready = Endpoint(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with made.running():
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    yield made
    stop.set()
    thread.join()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = call("supervise diagnose", list(args))
    return code, " ".join(capsys.readouterr().out.split())


def test_the_findings_name_the_cause_without_a_model(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(capsys, log)
    assert code == 0 and f"{TICKS} observations, ticks 1 to {TICKS}" in output
    assert "advise: learning rate too high since step" in output and "optim/update_ratio went from 0.005" in output
    assert "remedy: lower the learning rate" in output and "no model was used" in output
    code, text = run(capsys, log, "--until", "40", "--json")
    result = json.loads(text)
    assert code == 0 and result["ticks"] == [1, 40] and result["model"] is None
    assert [finding["kind"] for finding in result["findings"]] == ["never_evaluated"]
    assert "Nothing needs action; 1 remark:" in run(capsys, log, "--until", "40")[1]


def test_a_models_program_runs_and_its_answer_is_checked_against_the_log(
    log: str, tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.script = program(HONEST)
    options = ["--model", "m", "--base-url", endpoint.openai_url]
    code, text = run(capsys, log, *options, "--json", "--log-dir", str(tmp_path / "kept"), "--knob", SCALE)
    result = json.loads(text)["model"]
    assert code == 0 and result["diagnosis"]["cause"] == "lr_too_high" and result["failure"] is None
    assert abs(result["diagnosis"]["onset"] - ONSET) <= 1 and result["diagnosis"]["knob"] == SCALE
    assert result["calls"] == len(endpoint.requests) and (tmp_path / "kept" / "supervisor.jsonl").is_file()
    code, output = run(capsys, log, *options)
    assert (
        code == 0 and "diagnosis from the model: lr_too_high since tick" in output and "at an unknown price" in output
    )


def test_the_named_key_goes_only_to_the_server(
    log: str, endpoint: Endpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVEN_TEST_KEY", KEY)
    endpoint.script = program(HONEST)
    options = [log, "--model", "m", "--base-url", endpoint.openai_url, "--key-env"]
    code, output = run(capsys, *options, "OVEN_TEST_KEY", "--json")
    assert code == 0 and KEY not in output
    assert {headers["Authorization"] for headers in endpoint.headers} == {f"Bearer {KEY}"}
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY is not set"):
        call("supervise diagnose", [*options, "NO_SUCH_KEY"])


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ('FINAL({"cause": "lr_too_high", "confidence": "high"})', "schema"),
        ('FINAL({"cause": "lr_too_high", "confidence": 1.0, "evidence": []})', "no_evidence"),
        ("FINAL({1, 2})", "errors"),
    ],
)
def test_a_refused_answer_is_a_counted_failure(
    answer: str, kind: str, log: str, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.script = program(answer)
    code, text = run(capsys, log, "--model", "m", "--base-url", endpoint.openai_url, "--json")
    result = json.loads(text)["model"]
    assert code == 1 and result["diagnosis"] is None and result["failure"] == kind and result["reason"]


def test_a_foreign_training_log_can_be_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [observed(tick) for tick in range(1, TICKS + 1)]
    lines = [f"{row.step},{row.metrics['loss']},{row.metrics['optim/update_ratio']}" for row in rows]
    file = tmp_path / "history.csv"
    file.write_text("\n".join(["step,loss,optim/update_ratio", *lines]) + "\n")
    code, output = run(capsys, str(file))
    assert code == 0 and "advise: learning rate too high since step" in output


def test_a_log_that_cannot_be_diagnosed_is_refused_with_a_remedy(log: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = written(tmp_path / "empty", [started()])
    with pytest.raises(ConfigError, match=r"there is nothing to diagnose: the log of .* has no observations"):
        call("supervise diagnose", [empty])
    with pytest.raises(ConfigError, match="nowhere is not a file or folder"):
        call("supervise diagnose", ["nowhere"])
    with pytest.raises(ConfigError, match="--model and --base-url must be used together"):
        call("supervise diagnose", [log, "--model", "m"])
    with pytest.raises(ConfigError, match=r"budget\.usd is -1"):
        call("supervise diagnose", [log, "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--usd", "-1"])
