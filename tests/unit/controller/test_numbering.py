"""What a log lacks of its learner, by number."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.own_home import invoke
from tests.support.replayed import a_run, left_behind

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, Outcome, RunEnded
from oven_runs.home.run_folder import Home
from oven_runs.home.run_info import Status
from oven_runs.log.message_gaps import Gap, GapFinder


def seen(incarnation: int, n: int) -> Observation:
    return Observation(incarnation=incarnation, n=n, tick=n, step=n, progress=0.0, metrics={})


@given(st.lists(st.sets(st.integers(2, 39)), min_size=1, max_size=3))
def test_gaps_are_exactly_the_removed_messages(out: list[set[int]]) -> None:
    numbering = GapFinder()
    for incarnation, lost in enumerate(out, 1):
        for n in sorted(set(range(1, 41)) - lost):
            numbering.feed(seen(incarnation, n))
            numbering.feed(seen(incarnation, n))  # one that comes twice is none
    gaps = [set(range(hole.first, hole.last + 1)) for hole in numbering.gaps]
    assert sum(map(len, gaps)) == numbering.missing_count == sum(map(len, out))
    assert {(h.incarnation, n) for h in numbering.gaps for n in range(h.first, h.last + 1)} == {
        (incarnation, n) for incarnation, lost in enumerate(out, 1) for n in lost
    }


def test_reported_dropped_observations_are_not_missing() -> None:
    numbering = GapFinder()
    for n in (1, 2, 6):
        numbering.feed(seen(1, n))
    assert numbering.gaps == [Gap(1, 3, 5)] and numbering.missing_count == 3 and not numbering.has_ended
    numbering.feed(RunEnded(incarnation=1, n=7, reason="completed", tick=6, step=6, dropped_observations=3))
    assert numbering.missing_count == 0 and numbering.has_ended


@pytest.mark.parametrize(
    ("keep", "ended", "code", "words"),
    [
        (lambda event: True, "completed", 0, ""),
        (lambda event: not isinstance(event.body, RunEnded | Outcome), "completed", 1, "its log has no RunEnded"),
        (lambda event: not isinstance(event.body, RunEnded | Outcome), "stopped", 0, ""),
        (
            lambda event: not (isinstance(event.body, Observation) and event.body.tick > 7),
            "completed",
            1,
            "missing: 2 messages of the learner, with the numbers 9 to 10 of incarnation 1",
        ),
    ],
)
def test_verify_finds_what_is_missing_at_the_end(  # type: ignore[no-untyped-def]
    keep, ended: Status, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    events = [event for event in a_run().events if keep(event)]
    folder = left_behind(Home(), a_run())
    renumbered = [Event.read(seq, e.subject, e.data, e.time) for seq, e in enumerate(events, 1)]
    folder.export.write_text("".join(event.line() + "\n" for event in renumbered))
    folder.write_info(replace(folder.info(), ended=ended))
    assert invoke("replay", "r", "--verify", "--json") == code
    report = json.loads(capsys.readouterr().out)
    assert words in " ".join(report["missing_messages"]) and bool(report["missing_messages"]) == bool(words)
