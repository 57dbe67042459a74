"""What Enter shows of a decision: the graph's path, the chart with the forecast, and other rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.monitor_log import decided, recorded
from tests.unit.tui.test_monitor_keys import monitor, screen_text, until

from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.cited_paths import CitedPath, read_path
from oven_runs.log.other_rules import OtherRuling
from oven_tui.model import decision_chart, other_verdicts, path_picture
from oven_tui.model.decisions import Decided
from oven_tui.model.monitor_view import MonitorView

EVENTS = recorded()
CITED = "for: slow ← CAUSES ← lr_too_low ← SOLVES ← raise_lr [C011 S007; D; own-experiments]"


def plain(rows: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def path(text: str = CITED) -> CitedPath:
    found = read_path(text)
    assert found is not None
    return found


def test_a_path_is_drawn_in_boxes_with_arrows_towards_the_effect() -> None:
    top, middle, bottom, ground = plain(path_picture.picture(path(), 100))
    assert middle == "│ slow │◂─── causes ────│ lr_too_low │◂─── solves ────│ raise_lr │"
    assert top.startswith("╭──────╮") and "C011" in bottom and "S007" in bottom
    assert ground == "for: grade D; own-experiments"


def test_where_a_path_is_too_wide_it_goes_down() -> None:
    rows = plain(path_picture.picture(path(), 40))
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
    rows = path_picture.picture(path(text), width)
    widest = max(width, *(cell_len(name) for name in names))
    assert all(cell_len(row) <= widest for row in plain(rows))


def test_the_forecast_is_drawn_from_the_level_at_the_decision() -> None:
    view = MonitorView()
    for event in EVENTS:
        view.feed(event)
    entry = next(e for e in view.entries if isinstance(e, Decided) and e.decision.expected_change)
    rows = decision_chart.chart(view, entry, 90)
    words = plain(rows)
    assert "reward around the decision" in words[0] and "forecast +0.05 in 20 ticks" in words[0]
    assert {len(row) for row in words} == {90}
    assert any(kind == "change" for row in rows[1:-1] for _, kind in row)
    without = next(e for e in view.entries if isinstance(e, Decided) and not e.decision.target)
    assert decision_chart.chart(view, without, 90) == []


def test_verdicts_that_differ_have_a_row_and_doubts_are_told() -> None:
    decision = decided(EVENTS)[0]
    other = decision.model_copy(update={"verdict": "rejected", "tick": decision.tick + 2})
    found = [
        ("strict", OtherRuling(rules={}, same=False, decision=other, earlier_divergence="data.mixture at tick 3")),
        ("lax", OtherRuling(rules={}, same=True, decision=decision, earlier_divergence="")),
    ]
    rows = plain(other_verdicts.rows(found, decision, 90))
    assert "strict" in rows[0] and f"rejected at tick {decision.tick + 2}" in rows[0]
    assert "not sure: data.mixture at tick 3" in rows[1] and rows[2] == "the same: lax"
    assert "none of these rules" in plain(other_verdicts.rows(found[1:], decision, 90))[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(event.line() + "\n" for event in EVENTS))
    (folder / "run.json").write_text('{"run": "r", "created": "", "recipe": "grpo", "ended": "completed"}')
    (folder / "lock").touch()
    return folder


async def test_other_rules_are_told_on_the_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with monitor(EVENTS, (120, 90)) as (app, pilot):
        monkeypatch.setattr(app, "_access", LocalRun(RunFolder(run)))
        await pilot.press("g", "j", "enter")
        await until(pilot, lambda: "the same: " in screen_text(app) or "cannot be told" in screen_text(app))
        text = screen_text(app)
        assert "cannot be told" not in text and "Under other rules" in text
        assert "│ slow_progress │" in text and "reward around the decision" in text
