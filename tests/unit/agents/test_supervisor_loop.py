"""The supervisor's loop over a scripted model, with the real sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import pytest

from oven_core.errors import ConfigError
from oven_llm.sandbox.exchange import Block
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.probe import probe
from oven_llm.supervisor.loop import Message, Outcome, conversation
from oven_llm.supervisor.repl import CUT, NO_PROGRAM, Repl, programs, shown

OPENING: tuple[Message, ...] = ({"role": "system", "content": "programs"}, {"role": "user", "content": "How many?"})
CONTEXT = "alpha\nbeta\n" * 300

sandboxed = pytest.mark.skipif(not probe().backends, reason="this machine has no backend of the sandbox")


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
    assert (programs(answer).blocks, programs(answer).unclosed) == (result, unclosed)


def ended(**fields: object) -> Block:
    usual = dict(
        ended="completed", stdout="", stderr="", error="", answer=None, refused=(), calls=0, own_s=0.0, host_s=0.0,
        dropped=0, namespace_lost=False,
    )  # fmt: skip
    return Block(**(usual | fields))  # type: ignore[arg-type]


def test_shown_output_is_cut_and_says_so() -> None:
    assert shown(ended(), 10) == "No output."
    assert (
        shown(ended(stdout="x" * 25, dropped=5), 10)
        == f"Output:\n{'x' * 10}\n(20 more characters are not shown: print less.)"
    )
    message = shown(ended(ended="error", stdout="x" * 25, error="KeyError: 'a'"), 10)
    assert "KeyError: 'a'" in message
    message = shown(ended(ended="timeout", error="it took more than 30 s", namespace_lost=True), 10)
    assert "it took more than 30 s. What it had defined is gone" in message
    assert "FINAL did not take the answer: a set" in shown(ended(refused=("a set",)), 10)


@pytest.fixture(scope="module")
def repl() -> Iterator[Repl]:
    worker = {"worker": lambda prompt: f"{prompt.count('beta')}"}
    with Repl("How many?", CONTEXT, worker, limits=Limits(block_s=20), output_limit=100) as opened:
        yield opened


def play(
    repl: Repl, model: Callable[[tuple[Message, ...]], str], max_iterations: int = 15, max_errors: int = 5
) -> Outcome:
    def driver() -> Generator[tuple[Message, ...], str, None]:
        going = conversation(repl, OPENING, max_iterations=max_iterations, max_errors=max_errors, nudge=pressing)
        ends.append((yield from going))

    def pressing(remaining: int, total: int) -> str:
        return f"{remaining} of {total} turns are left."

    ends: list[Outcome] = []
    going = driver()
    answer: str | None = None
    while not ends:
        with contextlib.suppress(StopIteration):
            answer = model(next(going) if answer is None else going.send(answer))
    return ends[0]


def scripted(*answers: str) -> Callable[[tuple[Message, ...]], str]:
    remaining = iter(answers)
    return lambda messages: next(remaining)


@sandboxed
def test_a_supervisor_can_look_ask_its_worker_and_answer(repl: Repl) -> None:
    outcome = play(
        repl,
        scripted(
            block("print(len(context), query)"),
            block("parts = [context[at:at + 1100] for at in range(0, len(context), 1100)]"),
            block("total = sum(int(worker(part)) for part in parts)") + block("FINAL(total)"),
        ),
    )
    assert (outcome.answer, outcome.ended, outcome.iterations, outcome.failed) == (300, "final", 3, 0)
    assert "3300 How many?" in outcome.messages[3]["content"]
    assert outcome.messages[3]["content"].endswith("14 of 15 turns are left.")


@sandboxed
def test_failures_are_reported_and_counted_and_can_be_corrected(repl: Repl) -> None:
    def model(messages: tuple[Message, ...]) -> str:
        answers = {
            "How many?": "I think it is 300.",
            NO_PROGRAM: block("def f(:"),
            "Error: invalid syntax": "```repl\nFINAL(",
            CUT: block("FINAL({1})") + block("never()"),
            "FINAL did not take the answer": block("FINAL('mended')"),
        }
        return next(answer for output, answer in answers.items() if output in messages[-1]["content"])

    outcome = play(repl, model)
    assert (outcome.answer, outcome.iterations, outcome.failed) == ("mended", 5, 4)
    assert "The 1 block after it did not run." in outcome.messages[-2]["content"]


@sandboxed
def test_the_loop_ends_after_its_turns_or_after_failures_in_a_row(repl: Repl) -> None:
    outcome = play(repl, lambda messages: block("print(1)"), max_iterations=3)
    assert (outcome.answer, outcome.ended, outcome.iterations) == (None, "iterations", 4)
    outcome = play(repl, lambda messages: block("1 / 0"), max_errors=2)
    assert (outcome.ended, outcome.iterations, outcome.failed) == ("errors", 2, 2)
    with pytest.raises(ConfigError, match="max_iterations is 0; give 1 or more"):
        play(repl, scripted(), max_iterations=0)


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
def test_after_the_last_turn_only_the_answer_is_requested(repl: Repl, last: str, answer: object, ended: str) -> None:
    def model(messages: tuple[Message, ...]) -> str:
        return last if messages[-1]["content"].endswith("0 of 2 turns are left.") else block("print(1)")

    outcome = play(repl, model, max_iterations=2)
    assert (outcome.answer, outcome.ended, outcome.iterations) == (answer, ended, 3)


@sandboxed
def test_a_falsy_answer_under_a_bare_except_counts(repl: Repl) -> None:
    outcome = play(repl, scripted(block("try:\n    FINAL('')\nexcept:\n    pass")))
    assert (outcome.answer, outcome.ended) == ("", "final")


@sandboxed
def test_an_empty_or_too_large_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="the context is empty"):
        Repl("q", "", {})
    with pytest.raises(ConfigError, match=r"context cannot go into the sandbox: 200\.0 MB, where 64 MB fit"):
        Repl("q", "x" * 200_000_000, {})
