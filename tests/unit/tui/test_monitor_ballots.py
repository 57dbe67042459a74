"""The monitor's panel of one ballot: who supported and who objected, and why, at any size."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from tests.support.mesh_log import Log

from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.ballot_panel import BallotPanel

ROSE = "gradients agree with their running mean (cosine 0.51 over 6 ticks)"
SPIKE = "grad_norm 10.1 is nine times its median"


def panel_of(log: Log) -> BallotPanel:
    view = MonitorView()
    for entry in log.events:
        view.feed(entry)
    return BallotPanel(view)


def text_rows(panel: BallotPanel, width: int, height: int) -> list[str]:
    rows = ["".join(text for text, _ in row) for row in panel.rows(width, height)]
    assert len(rows) <= height and all(cell_len(row) == width for row in rows)
    return [row.rstrip() for row in rows]


def contested(*, closes: bool) -> Log:
    log = Log.running("amy", "bob", "cat", "dan")
    log.propose("amy", 2.0, rationale=ROSE)
    log.vote("bob", "for", rationale="the held-out reading is flat")
    log.vote("cat", "against", confidence=0.5, rationale=SPIKE)
    if closes:
        log.tick(9)
    return log


def test_supporters_and_objectors_are_listed_with_their_reasons() -> None:
    panel = panel_of(contested(closes=True))
    first, second, third = text_rows(panel, 120, 8)[:3]
    assert first.startswith("+ amy") and first.endswith(ROSE)
    assert second.startswith("+ bob") and third.startswith("− cat") and third.endswith(SPIKE)


@pytest.mark.parametrize("height", [1, 2, 3, 4])
def test_where_rows_are_few_each_side_keeps_one(height: int) -> None:
    rows = text_rows(panel_of(contested(closes=True)), 78, height)
    assert rows[0].startswith("+ amy")
    if height > 1:
        assert any(row.startswith("− cat") for row in rows)


def test_a_long_reason_is_wrapped_next_to_the_name() -> None:
    log = Log.running("amy")
    log.propose("amy", 2.0, rationale=f"{ROSE}: optimizer.lr_scale 1 → 2, {SPIKE}")
    rows = text_rows(panel_of(log), 72, 8)
    assert rows[1].startswith(" " * 19) and rows[2].startswith(" " * 19) and SPIKE[-8:] in rows[2]


def test_an_open_ballot_says_for_whom_it_waits() -> None:
    panel = panel_of(contested(closes=False))
    assert text_rows(panel, 120, 8)[-1].split()[-1] == "dan"


def test_a_rejected_change_says_what_stopped_it() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 2.0, rationale=ROSE)
    log.vote("bob", "against", confidence=0.9, rationale=SPIKE)
    assert log.verdict == "rejected"
    row = next(row for row in text_rows(panel_of(log), 120, 8) if row.startswith("  mesh"))
    assert "vetoed by bob" in row


def test_without_a_ballot_there_is_nothing_to_show() -> None:
    assert text_rows(panel_of(Log.running("amy")), 80, 3) == []
