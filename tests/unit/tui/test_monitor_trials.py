"""Trials in the monitor: the fan of branches beside the run's curves, the list, the detail and the header."""

from __future__ import annotations

import math
from io import StringIO
from itertools import product

from rich.console import Console, Group
from tests.support.mesh_log import LR
from tests.support.trial_log import READING, begun, two_trials, under_way

from oven_core.protocol.events import Event
from oven_core.protocol.trial_messages import BranchObservation, TrialEnded
from oven_tui.model.braille_chart import Bounds, Branch, draw
from oven_tui.model.decisions import Decided, matching
from oven_tui.model.fans import POINTS, Fan, Fans, around
from oven_tui.model.metric_series import Column
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.decision_detail import content
from oven_tui.widgets.header import About, Header

EVENTS = two_trials()


def fold(events: list[Event]) -> MonitorView:
    view = MonitorView()
    for event in events:
        view.feed(event)
    return view


def decided(view: MonitorView) -> list[Decided]:
    return [entry for entry in view.entries if isinstance(entry, Decided)]


def points(branch: Branch) -> list[tuple[int, float]]:
    return [(column.x, column.last) for column in branch.columns]


def test_no_curve_of_the_run_has_a_step_of_a_branch_in_it() -> None:
    for events in (EVENTS, under_way()):
        without = [event for event in events if not isinstance(event.body, BranchObservation)]
        view, plain = fold(events), fold(without)
        assert view.series.keys() == plain.series.keys()
        for name, series in view.series.items():
            assert repr(series.columns(0, 300, 100)) == repr(plain.series[name].columns(0, 300, 100))
        assert repr(view.steps.columns(0, 300, 100)) == repr(plain.steps.columns(0, 300, 100))


def test_the_fan_begins_where_the_run_stands() -> None:
    view = fold(under_way())
    start = view.run.tick
    control, change = view.fans.branches("reward", start, start + 9, 10)
    assert (control.kind, change.kind) == ("control", "change")
    last = view.series["reward"].last
    assert points(control)[0] == points(change)[0] == (0, last)
    assert [x for x, _ in points(control)] == list(range(9)) and [x for x, _ in points(change)] == list(range(6))
    assert view.newest_tick() == start + 8 > view.run.tick


def test_what_lost_stays_as_a_trace_and_what_was_kept_is_the_run() -> None:
    view = fold(EVENTS)
    traces = view.fans.branches("reward", 0, 240, 241)
    assert [branch.kind for branch in traces] == ["trace", "trace"]
    fans = list(view.fans.by_id.values())
    assert [fan.kept for fan in fans] == [1, 0]
    assert traces[0].columns[-1].last < traces[0].columns[0].last  # the first trial's control
    assert view.newest_tick() == view.run.tick


def test_a_fan_is_bounded_and_draws_a_broken_value_as_a_gap() -> None:
    fan = Fan("t", 5, {"loss": 1.0})
    for n, value in enumerate([2.0, math.nan, 3.0], start=1):
        fan.add(_seen(5 + n, value))
    (branch,) = fan.branches("loss", 0, 9, 10)
    assert [column.low <= column.high for column in branch.columns] == [True, True, False, True]
    for n in range(POINTS + 5):
        fan.add(_seen(9 + n, 1.0))
    assert fan.count == POINTS


def _seen(tick: int, value: float) -> BranchObservation:
    return BranchObservation(incarnation=1, n=tick, trial="t", arm=1, tick=tick, step=tick, metrics={"loss": value})


def test_an_end_of_a_trial_that_is_not_known_changes_nothing() -> None:
    fans = Fans()
    ended = TrialEnded(incarnation=1, n=9, trial="gone", status="completed", tick=1, step=1)
    assert fans.end(ended) is None and fans.branches("loss", 0, 9, 10) == []


def test_a_change_is_drawn_over_the_line_a_control_under_it_and_a_trace_within_the_bounds() -> None:
    def column(x: int, y: float) -> Column:
        return Column(x, y, y, y, y, 0)

    line = [column(x, 0.5) for x in range(8)]
    branches = [Branch(line, "control"), Branch([column(4, 0.5), column(7, 0.5)], "change")]
    rows = draw(line, Bounds(0, 1), "measured", {}, 4, 1, branches)
    assert [kind for _, kind in rows[0]] == ["line", "change"]
    outside = [Branch([column(1, 0.5), column(2, 9.0)], kind) for kind in ("trace", "change")]
    assert [len(branch.columns) for branch in around(outside, Bounds(0, 1))] == [1, 2]
    for (width, height), style in product([(1, 1), (9, 3)], ["noisy", "measured", "set"]):
        drawn = draw([], Bounds(0, 1), style, {}, width, height, outside)  # type: ignore[arg-type]
        assert all(sum(len(text) for text, _ in runs) == width for runs in drawn)


def test_a_tried_decision_says_how_far_its_trial_is_and_what_it_showed() -> None:
    (entry,) = decided(fold(under_way()))
    assert (entry.fate, entry.finding) == ("trying", "trial: arm 1 of 1, step 5 of 8")
    kept, lost = decided(fold(EVENTS))
    assert (kept.fate, kept.finding) == ("applied", f"kept: +0.120 ± 0.021 {READING} for 12 extra steps")
    assert (lost.fate, lost.finding) == ("tried", f"not kept: -0.043 ± 0.021 {READING} for 12 extra steps")
    assert matching("!kept:")(lost) is False and matching("kept: step:50-60")(kept)


def test_a_refused_trial_leaves_its_decision_undone() -> None:
    log = begun()
    log.end_trial(refused="the run is held")
    view = fold(log.events)
    entry, instead = decided(view)
    assert (entry.fate, entry.finding) == ("failed", "not tried: the run is held")
    assert (instead.fate, instead.finding, view.run.not_kept) == ("pending", "", 0)


def test_a_learner_that_starts_again_ends_what_was_under_way() -> None:
    log = begun()
    log.branch(0, 3)
    log.incarnation, log.n = 2, 0
    log.begin()
    view = fold(log.events)
    (entry,) = decided(view)
    assert entry.finding == "no result: the learner started again during the trial"
    assert view.newest_tick() == view.run.tick


def test_the_detail_has_arms_readings_steps_and_seconds() -> None:
    kept, lost = decided(fold(EVENTS))
    said = shown(kept)
    for part in ("control", f"{LR} 0.4", "0.62 ± 0.03", "64", "+0.120 ± 0.021", "kept"):
        assert part in said
    assert "8 steps of each arm, then 2 of a copy while its rate falls to 0" in said
    assert "20 steps computed, 12 of them thrown away, in 3.14 s" in said
    assert "a trial of 8 steps measured a gain of -0.043 ± 0.021: not kept" in shown(lost)
    assert "none yet" in shown(decided(fold(under_way()))[0])


def shown(entry: Decided) -> str:
    written = StringIO()
    Console(width=140, file=written).print(Group(*content(entry)))
    return written.getvalue()


def test_the_header_follows_a_trial() -> None:
    words = ["".join(text for text, _ in runs) for runs in Header(About("r"), fold(under_way())).rows(120, 3)[1:2]]
    assert "trial: arm 1 of 1, step 5 of 8" in words[0]
    done = Header(About("r"), fold(EVENTS)).rows(120, 3)
    assert "1 adopted, 0 rejected, 1 tried and not kept" in "".join(text for text, _ in done[2])
    assert "trial" not in "".join(text for text, _ in done[1])


def test_a_pace_is_that_of_steps_whoever_they_belong_to() -> None:
    view = fold(EVENTS)
    plain = fold([event for event in EVENTS if event.subject.split(".")[-1] != "branch"])
    assert 0 < view.pace_s <= plain.pace_s


def test_a_frozen_copy_keeps_its_fan() -> None:
    events = under_way()
    view = fold(events[:-2])
    copy = view.frozen()
    before = (repr(copy.fans), copy.run.trials.open)
    for event in events[-2:]:
        view.feed(event)
    assert (repr(copy.fans), copy.run.trials.open) == before != (repr(view.fans), view.run.trials.open)
