"""What a long command says of how far it has come, in a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from oven_bench.progress import progress


def test_a_log_gets_a_line_for_every_tenth() -> None:
    out = io.StringIO()
    with progress("runs", 40, Console(file=out, width=40)) as advance:
        for n in range(40):
            advance(1, f"run {n}")
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("runs: 4 of 40 after ") and lines[-1].startswith("runs: 40 of 40 after ")
    assert lines[-1].endswith("; run 39")


def test_a_few_are_told_one_by_one_and_many_at_once_in_one_line() -> None:
    out = io.StringIO()
    with progress("runs", 3, Console(file=out)) as advance:
        advance(1, "one")
        advance(2, "three")
    assert [line.split(" after")[0] for line in out.getvalue().splitlines()] == ["runs: 1 of 3", "runs: 3 of 3"]


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    with progress("runs", 2, Console(file=out, force_terminal=True)) as advance:
        advance(2, "the second")
    assert "2/2" in out.getvalue() and "the second" in out.getvalue() and " of " not in out.getvalue()
