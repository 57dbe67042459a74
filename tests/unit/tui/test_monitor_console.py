"""The console: tails of process logs, cleaned and filtered."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.tui.test_monitor_keys import monitor, screen_text, until

from oven_runs.home.run_folder import RunFolder
from oven_tui.model.console_buffer import MAX_LINES, ConsoleBuffer
from oven_tui.screens.log_console import MAX_READ_BYTES, TAIL_BYTES, ConsoleScreen, ProcessLogs


def test_lines_are_cleaned_and_a_progress_bar_is_one_line() -> None:
    console = ConsoleBuffer()
    console.feed("learner", ["\x1b[2J\x1b]0;mine\x07evil\u202e\n", " 10%|#\r 50%|###\r100%|####", "  ", "ERROR: no\n"])
    texts = [line.text for line in console.lines()]
    assert texts[1:] == ["100%|####", "ERROR: no"] and "evil" in texts[0]
    assert not any(ord(char) < 32 or char == "\u202e" for text in texts for char in text)
    assert [line.kind for line in console.lines()][1:] == ["text", "bad"]


def test_the_filter_and_the_chosen_process_leave_their_lines() -> None:
    console = ConsoleBuffer()
    console.feed("learner", ["loss 1", "loss 2 httpx"])
    console.feed("mesh", ["loss of nerve"])
    console.filter = "loss !httpx"
    assert [line.text for line in console.lines()] == ["loss 1", "loss of nerve"]
    console.next_process(1)
    assert (console.process, [line.text for line in console.lines()]) == ("learner", ["loss 1"])
    console.next_process(-2)
    assert (console.process, [line.text for line in console.lines()]) == ("mesh", ["loss of nerve"])
    console.next_process(1)
    assert console.process == ""
    console.filter = "(["
    assert not console.lines()


def test_memory_is_bounded_and_what_is_let_go_is_counted() -> None:
    console = ConsoleBuffer()
    console.feed("learner", (f"line {number}" for number in range(MAX_LINES + 50)))
    assert len(console.lines()) == MAX_LINES and console.dropped_count == 50
    assert console.lines()[0].text == "line 50"


def test_the_end_of_a_file_is_read_then_what_is_added_and_one_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "learner.log"
    path.write_bytes(b"x" * (2 * TAIL_BYTES) + b"\nlast\nunfin")
    logs = ProcessLogs(tmp_path)
    assert logs.read() == [("learner", ["last"])], "a line whose beginning is missing is left out"
    assert logs.read() == []
    with path.open("ab") as file:
        file.write(b"ished\n\xff\n")
    assert logs.read() == [("learner", ["unfinished", "\ufffd"])]
    path.write_bytes(b"anew\n")
    assert logs.read() == [("learner", ["anew"])]
    with path.open("ab") as file:
        file.write(b"y" * (2 * MAX_READ_BYTES) + b"\nend\n")
    assert logs.read() == [("learner", ["end"])], "what is written faster than it can be shown is skipped"
    assert ProcessLogs(tmp_path / "none").read() == []


async def test_the_console_follows_filters_and_leads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "demo")
    folder.logs.mkdir(parents=True)
    (folder.logs / "mesh.log").write_text("the mesh speaks\n" * 3)
    async with monitor([], (100, 20)) as (app, pilot):
        monkeypatch.setattr(app, "_logs", ProcessLogs(folder.logs))
        await pilot.press("l")
        await until(pilot, lambda: "3 lines" in screen_text(app) and "the mesh speaks" in screen_text(app))
        with (folder.logs / "mesh.log").open("a") as file:
            file.write("ERROR: it stumbled\n")
        await until(pilot, lambda: "4 lines" in screen_text(app))
        await pilot.press("slash", *"stumb", "enter")
        await until(pilot, lambda: "1 lines match 'stumb'" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "4 lines" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConsoleScreen))
