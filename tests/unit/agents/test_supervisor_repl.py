"""The supervisor's programs, and its turns with a scripted model and the real sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scripted_handler import ScriptedHandler, in_order

from oven_core.errors import ConfigError
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.sandbox.sandbox import Block
from oven_llm.supervisor.orchestrator import RunResult, run
from oven_llm.supervisor.prompts import FINAL_REQUEST
from oven_llm.supervisor.repl import NO_PROGRAM, TRUNCATED, Repl, format_outcome, parse_programs

CONTEXT = "alpha\nbeta\n" * 300

sandboxed = pytest.mark.skipif(not detect_support().backends, reason="this machine has no backend of the sandbox")


def block(code: str) -> str:
    return f"Let me look.\n```repl\n{code}\n```\n"


@pytest.mark.parametrize(
    ("answer", "result", "unclosed"),
    [
        ("no program", (), False),
        ("```python\nprint(1)\n```", (), False),
        ("```repl\nprint(1)\n```", ("print(1)\n",), False),
        ("a\n ```repl \nx = 1\n\ny = 2\n ```\nb\n~~~REPL\nz\n~~~", ("x = 1\n\ny = 2\n", "z\n"), False),
        ("````repl\ntext = '''\n```\n'''\n````", ("text = '''\n```\n'''\n",), False),
        ("```text\n```repl\n```\n```repl\nrun()\n```", ("run()\n",), False),
        ("```repl\nfirst\n```\n```repl\nhalf = ", ("first\n",), True),
        ("```repl\n\n```", (), False),
        ("inline ```repl x``` is none", (), False),
    ],
)
def test_programs_are_the_blocks_fenced_as_repl(answer: str, result: tuple[str, ...], unclosed: bool) -> None:
    assert (parse_programs(answer).blocks, parse_programs(answer).is_unclosed) == (result, unclosed)


def ended(**fields: object) -> Block:
    usual = dict(
        ending="completed", stdout="", stderr="", error="", answer=None, refusal_reasons=(),
        call_count=0, child_s=0.0, host_s=0.0, dropped_count=0, namespace_lost=False,
    )  # fmt: skip
    return Block(**(usual | fields))  # type: ignore[arg-type]


def test_shown_output_is_cut_and_says_so() -> None:
    assert format_outcome(ended(), 10) == "No output."
    assert (
        format_outcome(ended(stdout="x" * 25, dropped_count=5), 10)
        == f"Output:\n{'x' * 10}\n(20 more characters are not shown. Print less.)"
    )
    message = format_outcome(ended(ending="error", stdout="x" * 25, error="KeyError: 'a'"), 10)
    assert "KeyError: 'a'" in message
    message = format_outcome(ended(ending="timeout", error="the block was stopped after 30 s", namespace_lost=True), 10)
    assert "The block was stopped after 30 s. All variables except context and query are lost" in message
    assert "FINAL refused the answer: a set" in format_outcome(ended(refusal_reasons=("a set",)), 10)


def play(says: Callable[[str], str] | ScriptedHandler, **options: Any) -> RunResult:
    worker = ScriptedHandler(lambda prompt: f"{prompt.count('beta')}")
    supervisor = says if isinstance(says, ScriptedHandler) else ScriptedHandler(says)
    return run("How many?", CONTEXT, supervisor, worker, output_limit=100, **options)


@sandboxed
def test_a_supervisor_can_look_ask_its_worker_and_answer() -> None:
    supervisor = ScriptedHandler(
        in_order(
            block("print(len(context), query)"),
            block("parts = [context[at:at + 1100] for at in range(0, len(context), 1100)]"),
            block("total = sum(int(worker(part)) for part in parts)") + block("FINAL(total)"),
        )
    )
    result = play(supervisor)
    assert (result.answer, result.ended, result.iterations, result.failed) == (300, "final", 3, 0)
    assert "3300 How many?" in supervisor.questions[1] and supervisor.questions[1].endswith("14 of 15 turns are left.")


@sandboxed
def test_failures_are_reported_and_counted_and_can_be_corrected() -> None:
    def says(message: str) -> str:
        answers = {
            "Write your first program": "I think it is 300.",
            NO_PROGRAM: block("def f(:"),
            "Error: invalid syntax": "```repl\nFINAL(",
            TRUNCATED: block("FINAL({1})") + block("never()"),
            "FINAL refused the answer": block("FINAL('mended')"),
        }
        return next(answer for output, answer in answers.items() if output in message)

    supervisor = ScriptedHandler(says)
    result = play(supervisor)
    assert (result.answer, result.iterations, result.failed) == ("mended", 5, 4)
    assert "The 1 block after that did not run." in supervisor.questions[-1]


@sandboxed
def test_the_loop_ends_after_its_turns_or_after_failures_in_a_row() -> None:
    result = play(lambda _: block("print(1)"), max_iterations=3)
    assert (result.answer, result.ended, result.iterations) == (None, "iterations", 4)
    result = play(lambda _: block("1 / 0"), max_errors=2)
    assert (result.ended, result.iterations, result.failed) == ("errors", 2, 2)
    with pytest.raises(ConfigError, match="max_iterations is 0; expected 1 or more"):
        play(in_order(), max_iterations=0)


@sandboxed
@pytest.mark.parametrize(
    ("last", "answer", "ended"),
    [
        (block("FINAL([0])"), [0], "forced"),
        ("  It is 300. ", "It is 300.", "forced"),
        ("", None, "iterations"),
        ("```repl\nFINAL(", None, "iterations"),
    ],
)
def test_after_the_last_turn_only_the_answer_is_requested(last: str, answer: object, ended: str) -> None:
    def says(message: str) -> str:
        return last if message.endswith(FINAL_REQUEST) else block("print(1)")

    result = play(says, max_iterations=2)
    assert (result.answer, result.ended, result.iterations) == (answer, ended, 3)


@sandboxed
def test_a_falsy_answer_under_a_bare_except_counts() -> None:
    result = play(in_order(block("try:\n    FINAL('')\nexcept:\n    pass")))
    assert (result.answer, result.ended) == ("", "final")


@sandboxed
def test_an_empty_or_too_large_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="the context is empty"):
        Repl("q", "", {})
    with pytest.raises(ConfigError, match=r"cannot pass context to the sandbox: it has 200\.0 MB; the limit is 64 MB"):
        Repl("q", "x" * 200_000_000, {})
