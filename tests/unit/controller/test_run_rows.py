"""Rows of a list of runs: from the digest of a log, which is not folded, and from the cache."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.monitor_log import recorded
from tests.support.recorded_runs import write_run

from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.home.run_rows import LogDigest, RunRows
from oven_runs.log.run_row import RunRow
from oven_runs.log.run_summary import RunSummary

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def read(home: Home) -> dict[str, RunRow]:
    rows = RunRows(home)
    rows.refresh()
    list(rows.advance())
    rows.save()
    return rows.rows


def folded(folder: RunFolder) -> RunSummary:
    summary = RunSummary()
    for event in exported_events(folder):
        summary.feed(event)
    return summary


def test_a_row_equals_the_fold_of_the_whole_log(home: Home) -> None:
    folder = write_run(home, "one", recorded())
    summary, row = folded(folder), read(home)["one"]
    assert row.is_complete and (row.step, row.max_steps, row.progress) == (summary.step, 240, summary.progress)
    assert (row.adopted, row.rejected, row.held) == (summary.adopted, summary.rejected, summary.hold_reason)
    assert row.target == summary.target() == "eval/accuracy"
    assert (row.first_value, row.newest_value) == (summary.first_values[row.target], summary.metrics[row.target])
    assert row.newest_time == summary.last_time.isoformat() if summary.last_time else False
    assert row.pace_s == pytest.approx(1.0, abs=0.1)
    assert any("malformed" in alert for alert in row.alerts(NOW))


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 40_000), min_size=1, max_size=4))
def test_a_growing_log_gives_the_same_digest(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    folder = write_run(Home(tmp_path_factory.mktemp("home")), "grows", EVENTS)
    data, summary = folder.export.read_bytes(), folded(folder)
    digest = LogDigest(folder.export)
    for cut in sorted(cuts):
        folder.export.write_bytes(data[:cut])  # of the same file, as it grows
        while digest.advance():
            pass
    folder.export.write_bytes(data)
    while digest.advance():
        pass
    grown = digest.summary
    assert (grown.adopted, grown.rejected, grown.step, grown.metrics) == (
        summary.adopted,
        summary.rejected,
        summary.step,
        summary.metrics,
    )
    assert digest.unreadable_lines == 0 and digest.is_complete


EVENTS = recorded()


def test_a_log_that_did_not_change_is_not_read_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(home, "one", EVENTS)
    first = read(home)
    monkeypatch.setattr(LogDigest, "advance", lambda self: pytest.fail("it was read again"))
    assert read(home) == first
    monkeypatch.undo()
    with folder.export.open("a") as out:
        out.write(EVENTS[0].line() + "\n")
    assert read(home)["one"] == replace(first["one"], newest_time=read(home)["one"].newest_time)


@pytest.mark.parametrize("text", ["", "{", '{"format": 99}', '{"format": 1, "runs": {"one": {"at": 3}}}', "[]"])
def test_a_damaged_cache_is_ignored(home: Home, text: str) -> None:
    write_run(home, "one", EVENTS)
    home.cache.mkdir(exist_ok=True)
    (home.cache / "run-rows.json").write_text(text)
    assert read(home)["one"].is_complete
    assert json.loads((home.cache / "run-rows.json").read_text())["runs"]["one"]


def test_a_run_with_an_unreadable_log_has_a_row_with_the_reason(home: Home) -> None:
    home.create("none", "grpo")
    (home.create("empty", "grpo")).export.write_bytes(b"")
    home.create("noise", "grpo").export.write_bytes(os.urandom(4096))
    home.create("line", "grpo").export.write_bytes(b"x" * 100_000)
    cut = write_run(home, "cut", EVENTS)
    cut.export.write_bytes(cut.export.read_bytes()[:-700])
    rows = read(home)
    assert set(rows) == {"none", "empty", "noise", "line", "cut"}
    for name in ("none", "empty", "noise", "line"):
        assert rows[name].fault and rows[name].alerts(NOW)
    assert not rows["cut"].fault and rows["cut"].step


def test_states_and_alerts() -> None:
    live = RunRow("r", status="running", step=3, newest_time=(NOW - timedelta(seconds=4)).isoformat(), pace_s=1.0)
    assert live.state(NOW) == "live" and live.alerts(NOW) == []
    assert live.state(NOW + timedelta(seconds=30)) == "stalled"
    slow = RunRow("r", status="running", step=3, newest_time=NOW.isoformat(), pace_s=60.0)
    assert slow.state(NOW + timedelta(seconds=500)) == "live"
    assert RunRow("r", status="running").state(NOW) == "waiting"
    held = RunRow("r", status="running", newest_time=NOW.isoformat(), held="a person wants to look")
    assert held.state(NOW) == "held" and held.alerts(NOW) == ["held: a person wants to look"]
    asks = RunRow("r", status="running", newest_time=NOW.isoformat(), advised=("000000000012-00",))
    assert asks.alerts(NOW) == ["pending advice: approve 000000000012-00"]
    failed = RunRow("r", status="failed", ended="failed: out of memory")
    assert failed.alerts(NOW) == ["failed: out of memory"]
    broken = RunRow("r", status="completed", step=3, target="loss", is_complete=True)
    assert broken.alerts(NOW) == ["loss is not a number"]
