"""`supervise run` over real HTTP: two scripted models behind one endpoint, the sandbox, the log's files."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.judge_endpoint import Endpoint
from tests.support.scripted_conversation import ChatMessage, ChatRequest
from tests.support.scripted_handler import program

from oven_controller.cli.main import run as cli
from oven_core.errors import ConfigError
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.supervisor.model_handlers import find_api_key

pytestmark = pytest.mark.skipif(not detect_support().backends, reason="this machine has no backend of the sandbox")

KEY = "sk-canary-77d1"
EXAMPLE = Path(__file__).parents[3] / "examples" / "basic_qa.py"
CODE = """
parts = [context["a.txt"], context["b.json"]["note"], "a third"]
slots = worker_batch(parts)
FINAL({"slots": slots, "texts": [isinstance(one, str) for one in slots]})
"""


def script(request: ChatRequest) -> ChatMessage:
    last = request.messages[-1].text
    return ChatMessage("assistant", program(CODE) if request.model == "strong" else f"{len(last)} characters")


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with Endpoint().running() as served:
        served.script = script
        monkeypatch.setenv("SUPERVISOR_MODEL", "strong")
        monkeypatch.setenv("WORKER_MODEL", "cheap")
        monkeypatch.setenv("BASE_URL", served.openai_url)
        monkeypatch.setenv("CANARY_KEY", KEY)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.txt").write_text("alpha\n")
        (tmp_path / "b.json").write_text('{"note": "beta"}')
        yield served


async def ask(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, output, errors)."""

    def call() -> int:
        try:
            cli(["supervise", "run", "How long?", "a.txt", "b.json", *args])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    code = await asyncio.to_thread(call)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


async def test_a_question_is_answered_through_both_models(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--log-dir", "log", "--key-env", "CANARY_KEY", "--json")
    code, out, err = await ask(capsys, *args)
    assert (code, err) == (0, "")
    served = json.loads(out)
    assert served["answer"] == {"slots": ["6 characters", "4 characters", "7 characters"], "texts": [True] * 3}
    assert served["ended"] == "final" and served["calls"] == 4 and served["cost_usd"] is None
    assert served["worker_usage"]["input_tokens"] > 0
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in endpoint.headers)
    assert len(events(tmp_path / "log", "worker")) == 3
    sent = len(endpoint.requests)
    code, out, _ = await ask(capsys, *args, "--resume")
    assert code == 0 and json.loads(out)["answer"] == served["answer"] and len(endpoint.requests) == sent
    code, _, err = await ask(capsys, *args)
    assert code == 2 and "already contains a run" in err


async def test_an_answered_run_is_printed_with_its_programs_and_exported_for_training(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = iter([program("1 / 0"), "no program", program(CODE)])
    endpoint.script = lambda request: ChatMessage("assistant", next(failing) if request.model == "strong" else "a text")
    code, out, _ = await ask(capsys, "--log-dir", "logs/first", "--trajectory")
    assert code == 0 and "turn 1 (error):\n  1 / 0\n" in out and "turn 3 (completed):" in out
    endpoint.script = lambda request: ChatMessage("assistant", "no program")
    assert (await ask(capsys, "--log-dir", "logs/unanswered", "--max-iterations", "1"))[0] == 0  # "forced", not FINAL

    def exported(role: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with pytest.raises(SystemExit) as ended:
            cli(["supervise", "export", "logs", "--role", role, "--json"])
        assert not ended.value.code
        counts = json.loads(capsys.readouterr().out)
        return counts, [json.loads(line) for line in Path(counts["file"]).read_text().splitlines()]

    counts, rows = await asyncio.to_thread(exported, "supervisor")
    assert (counts["answered"], counts["rows"], counts["skipped"]) == (1, 1, 2)
    assert [message["role"] for message in rows[0]["prompt"]][:2] == ["system", "user"]
    assert rows[0]["completion"] == [{"role": "assistant", "content": program(CODE)}] and rows[0]["step"] == 3
    counts, rows = await asyncio.to_thread(exported, "worker")
    assert sorted(row["prompt"][0]["content"] for row in rows) == ["a third", "alpha\n", "beta"]
    for folder, message in (("logs/unanswered", "there is no call of the"), ("a.txt", "contains no log of")):
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(cli, ["supervise", "export", folder])
        assert ended.value.code == 2 and message in capsys.readouterr().err


async def test_a_key_is_not_sent_to_a_worker_at_another_address(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKERS_KEY", "sk-canary-of-the-worker")
    second = endpoint.openai_url.replace("127.0.0.1", "localhost")
    args = ("--key-env", "CANARY_KEY", "--worker-base-url", second, "--json")
    for more, keys in (((), {KEY, "none"}), (("--worker-key-env", "WORKERS_KEY"), {KEY, "sk-canary-of-the-worker"})):
        endpoint.headers.clear()
        assert (await ask(capsys, *args, *more))[0] == 0
        sent = {(headers["Host"].partition(":")[0], headers["Authorization"]) for headers in endpoint.headers}
        assert {key for host, key in sent if host == "127.0.0.1"} == {f"Bearer {KEY}"}
        assert {key.removeprefix("Bearer ") for _, key in sent} == keys


@pytest.mark.parametrize(
    ("fault", "slot"),
    [("html", "bad_response"), ("cutbody", "bad_response"), ("404", "not_found"), ("401", "auth")],
)
async def test_a_broken_worker_answer_leaves_the_reason_in_its_slot(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], fault: str, slot: str
) -> None:
    code, out, _ = await ask(capsys, "--worker-model", f"cheap@{fault}", "--concurrency", "1", "--json")
    served = json.loads(out)
    assert code == 0 and served["answer"]["texts"] == [False, True, True]
    assert served["answer"]["slots"][0]["failed"].startswith(slot) and served["failures"] == {f"worker {slot}": 1}


async def test_an_echoed_key_is_in_no_file(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, model in enumerate(("cheap@echo200", "cheap@echo500x9", "cheap@echo400")):
        shown = await ask(capsys, "--worker-model", model, "--log-dir", f"log{number}", "--key-env", "CANARY_KEY")
        assert shown[0] == 0 and KEY not in "".join(shown[1:])
    assert KEY not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--supervisor-model", "strong@401"), 3, "no answer (failed): the supervisor's model failed: auth: HTTP 401"),
        (("--supervisor-model", "strong@htmlx5"), 3, "bad_response"),
        (("--max-calls", "1", "--worker-model", "x@html"), 0, "budget.calls is 1, 1 are used"),
        (("--resume",), 2, "--resume needs --log-dir"),
        (("--key-env", "NO_SUCH_KEY"), 2, "the environment variable NO_SUCH_KEY is not set; set it"),
        (("--base-url", "https://example.org/v1"), 2, "no API key for https://example.org/v1: use"),
        (("--base-url", "https://me:hunter2@x/v1"), 2, "the supervisor contains a user, a password or a query; use"),
        (
            ("--base-url", "http://[::1"),
            2,
            "the address of the supervisor is 'http://[::1'; expected an address such as",
        ),
        (("--worker-key-env", "CANARY_KEY"), 2, "--worker-key-env needs --worker-base-url"),
        (("--base-url", "ftp://x"), 2, "the address of the supervisor is 'ftp://x'; expected an address such as"),
        (("--max-usd", "1"), 2, "cannot be enforced"),
        (("--max-seconds", "0"), 2, "seconds is 0"),
        (("missing.txt",), 2, "the context missing.txt cannot be read: No such file or directory"),
        (("cut.json",), 2, "cut.json is not valid JSON"),
        (("cut.jsonl",), 2, "cut.jsonl, line 2, is not valid JSON"),
        (("latin.txt",), 2, "latin.txt is not UTF-8 text (byte 3)"),
        (("number.json",), 2, "number.json contains 7; the context must be a string"),
    ],
)
async def test_bad_input_is_answered_with_the_remedy(
    endpoint: Endpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    (tmp_path / "cut.json").write_text('{"a": [1, 2')
    (tmp_path / "cut.jsonl").write_text('{"a": 1}\n{"a":')
    (tmp_path / "latin.txt").write_bytes("naïve é".encode("latin-1").replace(b"na\xef", b"abc\xef"))
    (tmp_path / "number.json").write_text("7")
    ended, out, err = await ask(capsys, *args)
    assert (ended, message in out + err) == (code, True), out + err
    assert "Traceback" not in out + err and "hunter2" not in out + err


async def test_the_example_runs(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.script = lambda request: ChatMessage("assistant", program("FINAL(query)"))
    monkeypatch.setattr(sys, "argv", ["basic_qa.py", "a.txt", "Which method won?"])
    for folder in ("basic_qa", "basic_qa-2"):
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(runpy.run_path, str(EXAMPLE), run_name="__main__")
        assert not ended.value.code and capsys.readouterr().out == "Which method won?\n"
        assert len(events(tmp_path / "logs" / folder, "supervisor")) == 1


async def test_a_missing_key_is_refused_and_openais_key_goes_only_to_openai(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BASE_URL", "TOGETHER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    code, _, err = await ask(capsys)
    assert (
        code == 2
        and "no API key for https://api.together.xyz/v1: the environment variable TOGETHER_API_KEY is not" in err
    )
    assert find_api_key("https://api.openai.com/v1") == KEY
    for address in ("https://api.openai.com.example.org/v1", "https://api.deepseek.com/v1", "https://10.0.0.1/v1"):
        with pytest.raises(ConfigError, match="no API key for"):
            find_api_key(address, environ={"OPENAI_API_KEY": KEY})
    assert find_api_key("http://127.0.0.1:8000/v1") is None
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, KEY)
    await ask(capsys, "--base-url", endpoint.openai_url)
    assert endpoint.headers and not any(KEY in str(headers) for headers in endpoint.headers)
