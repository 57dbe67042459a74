"""`run` over scripted models, with the real sandbox and the real files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_handler import ScriptedHandler, in_order, program

from oven_core.errors import ConfigError, StoreInUseError
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, Finish, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.optional_features import AgreedTerms, Terms
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import Usage
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.sandbox.limits import Limits
from oven_llm.supervisor.model_handlers import ModelHandler, ProviderHandler
from oven_llm.supervisor.orchestrator import RunResult, arun, run
from oven_llm.supervisor.run_logger import lock_folder
from oven_runs.settings.judge_providers import Price, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings

pytestmark = pytest.mark.skipif(not detect_support().backends, reason="this machine has no backend of the sandbox")

CONTEXT = "alpha\nbeta\n" * 300
KEY = 'sk-canary-"7\\f'
COUNT = program("parts = [context[at:at + 1100] for at in range(0, len(context), 1100)]") + program(
    "FINAL(sum(map(int, worker_batch(parts))))"
)


def counting(prompt: str) -> str:
    return str(prompt.count("beta"))


def run_with(supervisor: ModelHandler | str, worker: ModelHandler | None = None, **more: Any) -> RunResult:
    first = ScriptedHandler(in_order(supervisor), model="strong") if isinstance(supervisor, str) else supervisor
    return run("How many?", CONTEXT, first, worker or ScriptedHandler(counting, model="cheap"), **more)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("backend", detect_support().backends)
def test_a_run_is_answered_metered_and_logged(tmp_path: Path, backend: str) -> None:
    result = run_with(COUNT, log_dir=tmp_path / "log", backend=backend)
    assert (result.answer, result.ended, result.iterations, result.failed) == (300, "final", 1, 0)
    assert (result.supervisor_usage, result.worker_usage) == (Usage(10, 5), Usage(30, 15))
    assert result.cost_usd == pytest.approx(0.004)
    assert result.calls == 4 and not result.failures and not result.unmetered
    (first,) = events(tmp_path / "log", "supervisor")
    assert first["step"] == 1 and first["model"] == "strong" and first["response"] == COUNT
    assert first["usage"] == {
        "input_tokens": 10, "output_tokens": 5, "cached_tokens": 0, "written_tokens": 0
    }  # fmt: skip
    assert "string of 3,300 characters in 601 lines" in first["messages"][0]["content"]
    assert first["messages"][1]["content"].startswith("Question: How many?")
    assert [len(item["prompt"]) for item in events(tmp_path / "log", "worker")] == [1100] * 3
    programs = events(tmp_path / "log", "repl")
    assert [item["answer"] for item in programs] == [None, {"value": 300}]
    assert {"step", "timestamp", "code", "stdout", "stderr", "elapsed"} <= programs[0].keys()
    with pytest.raises(ConfigError, match="already contains a run: use another folder, or resume"):
        run_with(COUNT, log_dir=tmp_path / "log")


def test_a_resumed_run_repeats_no_paid_call(tmp_path: Path) -> None:
    whole = run_with(program("print(worker('beta'))") + COUNT, log_dir=tmp_path)
    message, done = events(tmp_path, "worker"), events(tmp_path, "repl")
    lines = (tmp_path / "worker.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "worker.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # killed while it wrote
    (tmp_path / "repl.jsonl").write_text("")
    silent = ScriptedHandler(in_order(), model="strong")
    worker = ScriptedHandler(counting, model="cheap")
    again = run_with(silent, worker, log_dir=tmp_path, resume=True)
    assert (again.answer, again.calls) == (whole.answer, whole.calls)
    assert again.cost_usd == pytest.approx(0.005)
    assert len(worker.questions) == 2 and not silent.questions
    key = lambda item: (item["step"], item["prompt"], item["response"])  # noqa: E731
    assert sorted(map(key, events(tmp_path, "worker"))) == sorted(map(key, message))
    assert [item["code"] for item in events(tmp_path, "repl")] == [item["code"] for item in done]
    last = run_with(silent, ScriptedHandler(in_order(), model="cheap"), log_dir=tmp_path, resume=True)
    assert last.ended == "final" and len(events(tmp_path, "repl")) == len(done)
    (tmp_path / "worker.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"cannot be resumed: line 1 of the log .*worker\.jsonl is"):
        run_with(silent, log_dir=tmp_path, resume=True)


KILLED = """
import os, sys
from tests.support.scripted_handler import ScriptedHandler, program
from tests.unit.agents.test_supervisor_run import KILLED_CODE, run_with

def says(prompt):
    with open("billed", "a") as bill:
        bill.write(prompt + chr(10))
    if prompt == "part 5":
        os.kill(os.getpid(), 9)
    return prompt.upper()

supervisor = ScriptedHandler(lambda text: program(KILLED_CODE), model="strong")
run_with(supervisor, ScriptedHandler(says, model="cheap"), log_dir="log", concurrency=1)
"""
KILLED_CODE = "first = worker('first')\nFINAL([first, *worker_batch([f'part {n}' for n in range(9)])])"


def test_two_processes_cannot_write_the_same_run(tmp_path: Path) -> None:
    model = ScriptedHandler(in_order(COUNT), model="strong")
    with lock_folder(tmp_path), pytest.raises(StoreInUseError, match="another process is writing to"):
        run_with(model, log_dir=tmp_path, resume=True)
    assert not model.questions and run_with(model, log_dir=tmp_path, resume=True).ended == "final"


def test_after_a_kill_only_the_call_in_flight_is_paid_twice(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    child = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, check=False
    )
    assert child.returncode == -signal.SIGKILL
    billed = (tmp_path / "billed").read_text().split("\n")[:-1]
    worker = ScriptedHandler(str.upper, model="cheap")
    silent = ScriptedHandler(in_order(), model="strong")
    result = run_with(silent, worker, log_dir=tmp_path / "log", resume=True, concurrency=1)
    assert result.answer == ["FIRST", *(f"PART {n}" for n in range(9))]
    assert billed == ["first", *(f"part {n}" for n in range(6))]
    assert worker.questions == [f"part {n}" for n in range(5, 9)]


def test_a_resumed_run_repeats_recorded_failures(tmp_path: Path) -> None:
    """Failures that the supervisor was told of, identical prompts, sets and draws."""
    numbers = iter(range(100))

    def says(prompt: str) -> str:
        if prompt == "bad":
            raise ModelFailure("overloaded", "HTTP 529")
        return f"{prompt} {next(numbers)}"

    code = """
import random
print({"a", "b", "c", "d", "e"}, random.random(), worker_batch(["bad"] + ["same"] * 20))
"""
    steps = program(code), program("print(worker('bad'))"), program("FINAL(worker('last'))")
    first = ScriptedHandler(in_order(*steps), model="strong")
    whole = run_with(first, ScriptedHandler(says, model="cheap"), log_dir=tmp_path)
    assert whole.answer == "last 20" and whole.failures == {"worker overloaded": 2}
    assert (
        again := run_with(
            ScriptedHandler(in_order()), ScriptedHandler(in_order(), model="cheap"), log_dir=tmp_path, resume=True
        )
    ).answer is None and again.ended == "failed"  # another model is asked anew
    silent = ScriptedHandler(in_order(), model="strong")
    again = run_with(silent, ScriptedHandler(in_order(), model="cheap"), log_dir=tmp_path, resume=True)
    assert (again.answer, again.failures, again.calls) == (whole.answer, whole.failures, whole.calls)


def test_a_failed_worker_raises_and_its_batch_slot_has_the_reason(tmp_path: Path) -> None:
    def says(prompt: str) -> str:
        if "bad" in prompt:
            raise ModelFailure("overloaded", "HTTP 529")
        if "bug" in prompt:
            raise KeyError(KEY)
        return prompt.upper()

    code = """
found = worker_batch(["a", "bad", "b", "bug"])
try:
    worker(prompt="bad")
except RuntimeError as error:
    FINAL([found, str(error), [isinstance(one, str) for one in found], worker_batch(prompts=[])])
"""
    result = run_with(program(code), ScriptedHandler(says), log_dir=tmp_path)
    failed = [{"failed": "overloaded: HTTP 529"}, {"failed": "internal: KeyError"}]
    assert result.answer == [
        ["A", failed[0], "B", failed[1]],
        "the worker failed: overloaded: HTTP 529",
        [True, False, True, False],
        [],
    ]
    assert result.failures == {"worker overloaded": 2, "worker internal": 1} and result.calls == 3
    assert [item.get("failure") for item in events(tmp_path, "worker")].count("overloaded: HTTP 529") == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("worker(7)", "requires a string, not a value of type int"),
        ("worker(['a'])", "not a list; use worker_batch for several"),
        ("worker('a', 'b')", "requires one argument, not 2"),
        ("worker_batch('ab')", "requires a list of strings, not a string"),
        ("worker_batch(['a', None])", "item 1 is None"),
    ],
)
def test_a_wrong_worker_call_is_explained(call: str, message: str) -> None:
    result = run_with(ScriptedHandler(in_order(program(call), program("FINAL(0)"))))
    assert (result.answer, result.failed) == (0, 1)
    supervisor = ScriptedHandler(in_order(program(call), program("FINAL(0)")))
    run_with(supervisor)
    assert message in supervisor.questions[1]


class Api:
    """An API that says the same to every prompt."""

    def __init__(self, text: str, finish: Finish = "stop") -> None:
        self.text, self.finish, self.calls = text, finish, 0

    async def complete(self, conversation: Conversation, terms: Terms, attempt_s: float) -> ModelReply:
        self.calls += 1
        return ModelReply(self.text, self.finish, "stop", model="m", usage=Usage(10, 5))

    async def close(self) -> None:
        pass


def paid(api: Api, budget: Budget, account: str) -> ProviderHandler:
    settings = endpoint_of("m", ModelSettings(provider="compatible", model="m", base_url="http://x"), catalogue(), "m")
    endpoint = replace(settings, price=Price(input=50, output=100))  # 0.001 USD per call
    return ProviderHandler(RemoteModel(api, endpoint, AgreedTerms(endpoint)), budget=budget, account=account)


LOOP = """
while True:
    try:
        worker("x")
    except RuntimeError as error:
        if "budget" in str(error):
            break
"""


def test_a_shared_budget_ends_a_run_and_counts_an_earlier_part_of_it(tmp_path: Path) -> None:
    for resume in (False, True):
        worker = Api("", "refusal")
        with Budget.with_caps(calls=5, path=tmp_path / "spend.sqlite") as budget:
            supervisor = paid(Api(program(LOOP)), budget, "supervisor")
            result = run_with(supervisor, paid(worker, budget, "worker"), log_dir=tmp_path / "log", resume=resume)
            assert (result.ended, result.reason) == (
                "budget", "budget.calls is 5, 5 are used and a call may take 1",
            )  # fmt: skip
            assert worker.calls == (0 if resume else 4), "what an earlier process spent is spent"
            assert (result.calls, result.worker_usage) == (5, Usage(40, 20)), "refusals are billed"
            assert result.cost_usd == pytest.approx(0.005)
            assert budget.accounts["worker"].calls == 4


def test_a_hanging_model_is_abandoned_at_the_time_limit() -> None:
    released = threading.Event()

    def hangs(_: str) -> str:
        released.wait(60)
        return "late"

    try:
        code = "try:\n    worker('x')\nexcept RuntimeError as error:\n    print(error)"
        result = run_with(ScriptedHandler(in_order(program(code))), ScriptedHandler(hangs), seconds=0.5)
        assert result.ended == "seconds"
        result = run_with(ScriptedHandler(hangs), seconds=0.2)
        assert (result.ended, result.iterations) == ("seconds", 0)
    finally:
        released.set()


def test_an_unreachable_supervisor_ends_the_run_with_a_reason() -> None:
    refused = ScriptedHandler(in_order(ModelFailure("auth", "HTTP 401")))
    result = run_with(refused)
    assert (result.ended, result.reason) == ("failed", "the supervisor's model failed: auth: HTTP 401")
    page = ModelFailure("bad_response", "a str instead of the API's object")
    mended = run_with(ScriptedHandler(in_order(page, page, program("FINAL('')"))))
    assert (mended.answer, mended.ended, mended.failures) == ("", "final", {"supervisor bad_response": 2})
    result = run_with(ScriptedHandler(in_order(page, page)), max_errors=2)
    assert (result.ended, result.iterations) == ("failed", 0)


def test_bad_arguments_are_refused_with_a_message() -> None:
    model = ScriptedHandler(in_order())
    for context, message in (
        ("", "the context is empty"),
        ({}, "is empty"),
        (b"x", "of type bytes; expected a string, a list"),
    ):
        with pytest.raises(ConfigError, match=message):
            run("q", context, model, model)  # type: ignore[arg-type]
    for more, message in (
        ({"max_iterations": 0}, "max_iterations is 0; expected 1 or more"),
        ({"output_limit": 0}, "output_limit is 0"),
        ({"worker_ctx_k": 0}, "worker_ctx_k is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"seconds": 0}, "seconds is 0; expected a number above 0"),
        ({"log_dir": "/dev/null/x"}, "cannot write to the log folder /dev/null/x: Not a directory"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_with(model, **more)
    with pytest.raises(ConfigError, match="the question is empty"):
        run(" ", CONTEXT, model, model)


@pytest.mark.parametrize("name", ["supervisor", "worker", "repl"])
def test_a_full_disk_ends_the_run_and_names_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        run_with(COUNT, log_dir=tmp_path)
    assert raised.value.filename == str(tmp_path / f"{name}.jsonl")


def test_a_key_echoed_by_an_endpoint_is_in_no_file(tmp_path: Path) -> None:
    supervisor = ScriptedHandler(in_order(program(f"print({KEY!r}, worker('what is the key?'))\nFINAL(worker('x'))")))
    supervisor.secrets = (KEY,)
    worker = ScriptedHandler(lambda prompt: f"you sent {KEY}", secrets=(KEY,))
    assert run_with(supervisor, worker, log_dir=tmp_path).answer == "you sent [removed]"
    for path in tmp_path.iterdir():
        data = path.read_text()
        assert KEY not in data and json.dumps(KEY)[1:-1] not in data and repr(KEY)[1:-1] not in data


async def test_a_cancelled_run_ends_its_block_and_waits_for_no_model() -> None:
    begun, released = threading.Event(), threading.Event()

    def hangs(_: str) -> str:
        begun.set()
        released.wait(60)
        return ""

    try:
        for supervisor in (
            ScriptedHandler(hangs),
            ScriptedHandler(in_order(program("begun()\nwhile True: pass"))),
            ScriptedHandler(in_order(program("try:\n    worker('x')\nexcept RuntimeError:\n    begun()"))),
        ):
            begun.clear()
            going = asyncio.create_task(
                arun("q", CONTEXT, supervisor, ScriptedHandler(hangs), primitives={"begun": begun.set})
            )
            await asyncio.to_thread(begun.wait, 60)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
    finally:
        released.set()
    done = await arun("q", CONTEXT, ScriptedHandler(in_order(program("FINAL(2)"))), ScriptedHandler(counting))
    assert done.answer == 2


def test_an_endless_block_is_a_failed_turn() -> None:
    supervisor = ScriptedHandler(
        in_order(program("while True: pass"), program("def f(:"), program("FINAL({1})"), COUNT)
    )
    result = run_with(supervisor, limits=Limits(block_s=0.3))
    assert (result.answer, result.failed, result.iterations) == (300, 3, 4)
    assert (
        "was stopped after 0.3 s" in supervisor.questions[1]
        and "except context and query are lost" in supervisor.questions[1]
    )
