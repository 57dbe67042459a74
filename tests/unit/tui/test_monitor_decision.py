"""What Enter shows of a decision: the graph's path, and the chart with the forecast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.monitor_log import recorded
from tests.unit.tui.test_monitor_keys import monitor, screen_text, until

from oven_runs.log.cited_paths import CitedPath, parse_path
from oven_tui.model import decision_chart, path_picture
from oven_tui.model.decision_entries import DecisionEntry
from oven_tui.model.monitor_view import MonitorView

EVENTS = recorded()
CITED = "for: slow ← CAUSES ← lr_too_low ← SOLVES ← raise_lr [C011 S007; D; own-experiments]"


def plain(rows: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def path(text: str = CITED) -> CitedPath:
    cited_path = parse_path(text)
    assert cited_path is not None
    return cited_path


def test_a_path_is_drawn_in_boxes_with_arrows_towards_the_effect() -> None:
    top, middle, bottom, ground = plain(path_picture.draw_path(path(), 100))
    assert middle == "│ slow │◂─── causes ────│ lr_too_low │◂─── solves ────│ raise_lr │"
    assert top.startswith("╭──────╮") and "C011" in bottom and "S007" in bottom
    assert ground == "for: grade D; own-experiments"


def test_where_a_path_is_too_wide_it_goes_down() -> None:
    rows = plain(path_picture.draw_path(path(), 40))
    assert rows == [
        "slow",
        "  ▴ causes  C011",
        "lr_too_low",
        "  ▴ solves  S007",
        "raise_lr",
        "for: grade D; own-experiments",
    ]


@given(st.lists(st.text("abc_猫", min_size=1, max_size=30), min_size=2, max_size=5), st.integers(20, 200))
def test_a_path_is_never_wider_than_its_page_where_a_name_fits(names: list[str], width: int) -> None:
    text = names[0] + "".join(f" → REQUIRES → {name}" for name in names[1:])
    rows = path_picture.draw_path(path(text), width)
    widest = max(width, *(cell_len(name) for name in names))
    assert all(cell_len(row) <= widest for row in plain(rows))


def test_the_forecast_starts_at_the_level_of_the_decision() -> None:
    view = MonitorView()
    for event in EVENTS:
        view.feed(event)
    entry = next(e for e in view.entries if isinstance(e, DecisionEntry) and e.decision.expected_change)
    rows = decision_chart.draw_decision_chart(view, entry, 90)
    words = plain(rows)
    assert "reward around the decision" in words[0] and "forecast +0.05 in 20 ticks" in words[0]
    assert {len(row) for row in words} == {90}
    assert any(kind == "change" for row in rows[1:-1] for _, kind in row)
    without = next(e for e in view.entries if isinstance(e, DecisionEntry) and not e.decision.target)
    assert decision_chart.draw_decision_chart(view, without, 90) == []


async def test_the_page_shows_the_graph_and_the_metric() -> None:
    async with monitor(EVENTS, (120, 90)) as (app, pilot):
        await pilot.press("g", "j", "enter")
        await until(pilot, lambda: "Tally" in screen_text(app))
        text = screen_text(app)
        assert "│ slow_progress │" in text and "reward around the decision" in text
