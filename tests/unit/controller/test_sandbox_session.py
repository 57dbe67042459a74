"""The sandbox with a real child behind real walls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.sandbox.confined_sandbox import ConfinedSandbox, open_sandbox
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.profiles import REPL, Profile
from oven_llm.sandbox.sandbox import Block, CallError, FinalAnswer, Sandbox

BACKENDS = detect_support().backends
pytestmark = pytest.mark.skipif(not BACKENDS, reason="this machine has no backend of the sandbox")
LIMITS = Limits(block_s=20)
ROOT = Path(__file__).parents[3]


def worker(prompt: str, again: int = 1) -> str:
    if prompt == "fail":
        raise CallError("the worker has no budget left")
    return prompt.upper() * again


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One for all that leaves its process alive."""
    with open_sandbox(REPL, {"worker": worker}, LIMITS, request.param) as opened:
        yield opened


def completed(block: Block) -> str:
    assert block.ending == "completed", block
    return block.stdout


def test_variables_last_from_block_to_block(sandbox: Sandbox) -> None:
    completed(sandbox.run("found = [1]\ndef double(n):\n    return 2 * n"))
    assert completed(sandbox.run("found = found + [double(4)]\nprint(found)")) == "[1, 8]\n"


@pytest.mark.parametrize("name", ["ctypes", "_ctypes", "ctypes.util", "socket", "subprocess"])
def test_no_module_beyond_those_of_the_profile_can_be_imported(sandbox: Sandbox, name: str) -> None:
    block = sandbox.run(f"import {name}")
    assert block.ending == "error" and block.error.startswith("ModuleNotFoundError: No module named")


def test_an_error_is_reported_and_keeps_the_namespace(sandbox: Sandbox) -> None:
    block = sandbox.run("kept = 7\nprint('before')\nkept / 0")
    assert (block.ending, block.stdout, block.namespace_lost) == ("error", "before\n", False)
    assert block.error == "ZeroDivisionError: division by zero" and block.error in block.stderr
    assert "inside" not in block.stderr  # no frame and no path of ours
    assert sandbox.run("def f(:").ending == "error"
    assert completed(sandbox.run("print(kept)")) == "7\n"


@pytest.mark.parametrize("answer", ["0", '""', "None", "[]", "{'a': [1.5, None]}"])
def test_every_json_value_is_an_answer(sandbox: Sandbox, answer: str) -> None:
    block = sandbox.run(f"FINAL({answer})\nprint('after')")
    assert block.answer == FinalAnswer(eval(answer)) and completed(block) == ""


def test_an_answer_counts_even_if_it_is_caught(sandbox: Sandbox) -> None:
    code = "try:\n    FINAL(0)\nexcept:\n    pass\nprint('on')"
    assert sandbox.run(code).answer == FinalAnswer(0)
    assert sandbox.run("try:\n    FINAL(1)\nexcept Exception:\n    FINAL(2)").answer == FinalAnswer(1)


def test_an_answer_that_json_cannot_hold_is_a_counted_failure(sandbox: Sandbox) -> None:
    block = sandbox.run("try:\n    FINAL({1, 2})\nexcept TypeError as error:\n    print(error)\nFINAL(float('nan'))")
    assert block.answer is None and len(block.refusal_reasons) == 2 and block.ending == "error"
    assert "FINAL requires a JSON value" in block.stdout and "TypeError" in block.error


def test_calls_reach_the_host_and_fail_in_the_code(sandbox: Sandbox) -> None:
    assert completed(sandbox.run("print(worker('a'), worker('b', again=2))")) == "A BB\n"
    block = sandbox.run("try:\n    worker('fail')\nexcept RuntimeError as error:\n    print(error)\nworker({1})")
    assert block.stdout == "the worker has no budget left\n" and block.call_count >= 1
    assert block.ending == "error" and "JSON" in block.error


@pytest.mark.parametrize(
    "value", ["", "text with \0, \u2028, \U0001f600 and \ud800", ["a", 1, None], {"log": [{"step": 1}]}, []]
)
def test_the_context_arrives_unchanged(sandbox: Sandbox, value: Any) -> None:
    if sandbox.backend == "monty" and "\ud800" in str(value):
        pytest.skip("monty has no halves of surrogate pairs")
    sandbox.assign("context", value)
    block = sandbox.run("FINAL([len(context), type(context).__name__])")
    assert block.answer == FinalAnswer([len(value), type(value).__name__])


def test_invalid_variables_are_refused(sandbox: Sandbox) -> None:
    for name, value, output in [
        ("two words", 1, "is not a valid variable name"),
        ("context", {1, 2}, "use a string or a JSON value"),
        ("context", "x" * 64_000_001, "64 MB"),
    ]:
        with pytest.raises(ConfigError, match=output):
            sandbox.assign(name, value)
    with pytest.raises(ConfigError, match="is not a valid function name"):
        open_sandbox(functions={"FINAL": print})


def test_output_is_cut_in_the_child_and_counted(sandbox: Sandbox) -> None:
    block = sandbox.run("for _ in range(30):\n    print('é' * 9_999)")
    assert 99_990 <= len(block.stdout.encode()) <= 100_000
    assert block.dropped_count == 300_000 - len(block.stdout) and block.ending == "completed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endless_block_is_killed_and_its_process_replaced(backend: str) -> None:
    with open_sandbox(REPL, {"worker": worker}, Limits(block_s=0.3), backend) as opened:
        opened.assign("context", "kept")
        block = opened.run(
            "lost = 1\nprint('before')\nwhile True:\n    try:\n        while True: pass\n    except: pass"
        )
        assert block.ending == "timeout" and block.namespace_lost and block.stdout in ("before\n", "")
        assert "0.3 s" in block.error
        after = opened.run("FINAL([context, worker('a')])")
        assert after.answer == FinalAnswer(["kept", "A"])
        assert opened.run("lost").error.startswith("NameError")


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_in_host_functions_does_not_count(backend: str) -> None:
    def slow(prompt: str) -> str:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            pass
        return prompt

    with open_sandbox(REPL, {"worker": slow}, Limits(block_s=0.5), backend) as opened:
        block = opened.run("FINAL(worker('x'))")
    assert block.answer == FinalAnswer("x") and block.host_s >= 0.6 and block.ending == "completed"


locked = pytest.mark.skipif(not BACKENDS or BACKENDS[0] == "monty", reason="no walls in this kernel")


@locked
def test_a_dead_process_is_reported_with_its_answer_and_replaced() -> None:
    with open_sandbox(limits=LIMITS) as opened:
        block = opened.run("import os\ntry:\n    FINAL('known')\nexcept BaseException:\n    os._exit(4)")
        assert (block.ending, block.error) == ("died", "the process exited with code 4")
        assert block.answer == FinalAnswer("known") and block.namespace_lost
        assert completed(opened.run("print('again')")) == "again\n"


@locked
def test_a_forged_end_of_a_block_gains_no_time_between_blocks() -> None:
    """The process is stopped whenever no block runs."""
    with open_sandbox(limits=LIMITS) as opened:
        assert isinstance(opened, ConfinedSandbox) and opened.pid is not None
        process = psutil.Process(opened.pid)
        code = """
import os, struct
done = b'{"ended":"completed","dropped":0}'
for fd in range(3, 4096):
    try:
        os.write(fd, struct.pack("<BI", 22, len(done)) + done)
    except OSError:
        pass
while True:
    pass
"""
        assert opened.run(code).ending == "completed"
        deadline = time.monotonic() + 60
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline


@locked
def test_the_child_dies_with_its_host_whatever_it_does() -> None:
    code = (
        "from oven_llm.sandbox.confined_sandbox import open_sandbox\n"
        "opened = open_sandbox()\n"
        "print(opened.pid, flush=True)\n"
        "opened.run('10 ** (10 ** 9)')"  # the interpreter's lock is held: no thread of the child's could end it
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=_environment())
    assert host.stdout is not None
    child = psutil.Process(int(host.stdout.readline()))
    host.kill()
    host.wait()
    host.stdout.close()
    child.wait(timeout=60)


@locked
def test_the_hosts_environment_and_descriptors_are_not_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVEN_CANARY_KEY", "sk-canary")
    with (tmp_path / "open").open("w") as file, open_sandbox(limits=LIMITS) as opened:
        assert isinstance(opened, ConfinedSandbox) and opened.pid is not None
        os.set_inheritable(file.fileno(), True)
        output = completed(opened.run("import os, sys\nprint(dict(os.environ), sys.argv)"))
        assert "canary" not in output
        assert len(os.listdir(f"/proc/{opened.pid}/fd")) == 6
        assert "canary" not in " ".join(psutil.Process(opened.pid).cmdline())


@locked
def test_exceeding_the_memory_limit_is_an_error() -> None:
    with open_sandbox(limits=Limits(memory_bytes=200_000_000)) as opened:
        assert opened.run("x = 'x' * 10**9").error == "MemoryError"
        assert completed(opened.run("print(1)")) == "1\n"
        with pytest.raises(ProcessError, match=r"could not pass .*memory_bytes"):
            opened.assign("context", "é" * 30_000_000)
        assert completed(opened.run("print(2)")) == "2\n"


@locked
def test_a_sandbox_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from oven_llm.sandbox import confined_child
    from oven_llm.sandbox.bpf import Rule

    def holes(descriptors: object) -> tuple[Rule, ...]:
        return tuple(Rule(call) for call in detect_support().machine.numbers if call != "execve")  # type: ignore[union-attr]

    monkeypatch.setattr(confined_child, "rules_for_repl", holes)
    with pytest.raises(ProcessError, match=r"is not secure: the system call (openat|socket) still works"):
        open_sandbox(backend="seccomp")
    with pytest.raises(ProcessError, match="did not start: ModuleNotFoundError: No module named 'no_such_module'"):
        open_sandbox(Profile(modules=("no_such_module",)))


needs_landlock = pytest.mark.skipif("landlock+seccomp" not in BACKENDS, reason="this kernel has no Landlock")


@needs_landlock
def test_a_test_suite_runs_with_one_folder_to_read_and_one_to_write(tmp_path: Path) -> None:
    read, write = tmp_path / "code", tmp_path / "results"
    read.mkdir()
    write.mkdir()
    (tmp_path / "secret").write_text("sk-canary")
    (read / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (read / "test_sums.py").write_text(
        "import threading, asyncio, subprocess, pytest\nfrom sums import add\n"
        "def test_right(tmp_path):\n"
        "    (tmp_path / 'note').write_text('x')\n"
        "    done = []\n"
        "    thread = threading.Thread(target=lambda: done.append(add(1, 2)))\n"
        "    thread.start(); thread.join()\n"
        "    assert done == [3]\n"
        "def test_loop():\n"
        "    assert asyncio.run(asyncio.sleep(0, 5)) == 5\n"
        "def test_wrong():\n"
        "    assert add(1, 1) == 3\n"
        f"def test_outside():\n    open({str(tmp_path / 'secret')!r})\n"
        f"def test_code_is_read_only():\n    open({str(read / 'sums.py')!r}, 'a')\n"
        "def test_program():\n    subprocess.run(['true'])\n"
    )
    with open_sandbox(Profile("tests", read=read, write=write), limits=Limits(block_s=120)) as opened:
        block = opened.run(
            f"import pytest\ncode = pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', {str(read)!r}, "
            f"'--junitxml', {str(write / 'report.xml')!r}, {str(read)!r}])\nFINAL(int(code))"
        )
        assert block.answer == FinalAnswer(1), block
        assert "2 passed" in block.stdout and "4 failed" in block.stdout
        assert block.stdout.count("PermissionError") >= 3 and "sk-canary" not in block.stdout
        assert "<testsuite" in (write / "report.xml").read_text()
        unit = opened.run("import unittest\nprint(unittest.TestCase().assertEqual(1, 1))")
        assert completed(unit) == "None\n"
    with pytest.raises(ConfigError, match="requires a folder for read"):
        Profile("tests", read=tmp_path / "none", write=write)
    with pytest.raises(ConfigError, match="cannot use files; omit read"):
        Profile("repl", read=read)


@pytest.mark.skipif(
    os.geteuid() != 0 or not BACKENDS or BACKENDS[0] == "monty", reason="not root, so it is tried already"
)
def test_an_unprivileged_user_gets_the_same_sandbox() -> None:
    """In a process that gave up being root, with a Python that it may run."""
    pythons = [sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"]
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from oven_llm.sandbox.confined_sandbox import open_sandbox\n"
        "opened = open_sandbox()\n"
        "blocks = [opened.run(code) for code in ('open(\"/etc/passwd\")', 'print(6 * 7)', 'import os; os.fork()')]\n"
        "print(opened.backend, [block.ending for block in blocks], blocks[1].stdout)"
    )
    for python in pythons:
        try:
            done = subprocess.run(
                [python, "-I", "-c", code, str(ROOT / "controller"), str(ROOT / "agents")],
                user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=60, cwd="/",
            )  # fmt: skip
        except OSError:
            continue
        if "requires-python" in done.stderr or "SyntaxError" in done.stderr or "Permission denied" in done.stderr:
            continue
        assert done.stdout == f"{BACKENDS[0]} ['error', 'completed', 'error'] 42\n\n", done.stderr
        return
    pytest.skip("no Python here that another user may run")


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "controller"), str(ROOT / "agents"), *sys.path])}
