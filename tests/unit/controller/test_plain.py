"""What agents and learners write never steers the terminal of who reads it, nor looks like a line of ours."""

from __future__ import annotations

import unicodedata
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR, NOON, Log
from tests.support.own_home import invoke
from tests.support.replayed import left_behind

from oven_controller.stack.line_output import LinePrinter
from oven_core.terminal_text import clean, table_lines
from oven_runs.home.run_folder import Home

FORGED = "    9.0 s  decision optimizer.lr_scale 1 → 0.5 adopted: all were for it"
HOSTILE = f"fine\n{FORGED}\r\x1b[2K\x9b31m\x1b]0;t\x07 \u202egnorw\u2066 \u2028{FORGED}\u200b"


def steers(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")]


@given(st.text())
def test_exactly_the_control_characters_are_replaced(text: str) -> None:
    cleaned = clean(text)
    assert not set(cleaned) & set("\x1b\x9b\n\r\x07\x08\u202a\u202b\u202d\u202e\u2066\u2069\u200f\u061c\u2028\u2029")
    remaining = [c for c in text if not steers(c) and c != " "]
    assert [c for c in cleaned if not steers(c) and c != " "] == remaining
    assert clean(cleaned) == cleaned


def a_hostile_run() -> Log:
    log = Log(stride=1)
    log.start(alone={"amy": (LR,)})
    log.join("amy")
    log.tick()
    log.propose("amy", 0.5, confidence=0.9, rationale=HOSTILE)
    log.status("amy", state="cannot_fire", reason=HOSTILE)
    log.status("amy", state="notice", reason=HOSTILE)
    log.operator("c1", "mute", agent="amy", reason=HOSTILE)
    log.tick(3)
    log.receipt(log.last)
    log.end()
    return log


def test_no_output_has_a_forged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    log = a_hostile_run()
    folder = left_behind(Home(), log)
    lines: list[str] = []
    report = LinePrinter(lines.append, "r", NOON - timedelta(seconds=1))
    for event in log.events:
        report.on_event(event)
    outputs = {"headless": "\n".join([*lines, *report.summary()])}
    for command in (["log", "r"], ["status", "r"], ["replay", "r", "--until", "2"], ["review", str(folder.export)]):
        invoke(*command)
        captured = capsys.readouterr()
        outputs[command[0]] = captured.out + captured.err
    text = folder.export.read_text()
    folder.export.write_text(text.replace('"verdict":"adopted"', '"verdict":"rejected"'))
    assert invoke("replay", "r") == 1
    outputs["a replay that differs"] = capsys.readouterr().out
    for name, output in outputs.items():
        assert not [c for c in steers(output) if c != "\n"], name
        assert FORGED not in output.splitlines(), name
        assert not any(line.startswith(FORGED[:20]) for line in output.splitlines()), name
    assert sum("gnorw" in output for output in outputs.values()) >= 3, "it is shown, and harmless"


def test_a_table_has_aligned_columns() -> None:
    rows = [("grpo-1", "completed", "a\nb"), ("r", "", "x")]
    assert table_lines(("run", "status", "start"), rows, 80) == [
        "run     status     start",
        "grpo-1  completed  a b",
        "r                  x",
    ]


def test_a_wide_table_wraps_its_widest_columns_but_not_the_first() -> None:
    first, words, path = "name-" * 5, "a few words " * 9, "/folder" * 30
    lines = table_lines(("name", "words", "path"), [(first, words, path), ("  second", "short", "")], 80)
    assert max(map(len, lines)) <= 80 and sum(first in line for line in lines) == 1
    assert "".join(line[27:].rpartition("  ")[2] for line in lines[1:-1]).count("/folder") >= 29
    assert lines[-1].startswith("  second") and "short" in lines[-1]


@given(st.lists(st.tuples(st.text(), st.text(), st.text())), st.integers(1, 100))
def test_a_table_contains_all_that_it_is_given(rows: list[tuple[str, str, str]], width: int) -> None:
    text = "".join("".join(table_lines(("a", "b", "c"), rows, width)).split())
    assert sorted(text) == sorted("".join("".join(["abc", *(clean("".join(row)) for row in rows)]).split()))
