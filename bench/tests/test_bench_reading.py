"""`bench reading` on a short log: the log replays, and every command prints the same with and without a cache."""

from __future__ import annotations

from pathlib import Path

from oven_bench.performance import reading
from oven_bench.performance.decided_run import CYCLE, DecidedRun
from oven_core.protocol.messages import Decision, Outcome
from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import Home
from oven_runs.log.replay import replay


def test_a_decided_run_replays_and_has_a_decision_per_cycle(tmp_path: Path) -> None:
    folder = Home(tmp_path).create("decided", "bench")
    DecidedRun(folder).write(3000)
    events = list(exported_events(folder))
    report = replay(events, folder.run)
    assert report.same and report.events == 3000
    assert report.adopted == report.tick // CYCLE == sum(isinstance(event.body, Decision) for event in events)
    assert any(isinstance(event.body, Outcome) and event.body.scored for event in events)


def test_commands_print_the_same_with_a_cache(tmp_path: Path) -> None:
    report = reading.bench(events=12_000, repeats=1, home=tmp_path)
    assert report.figures["same_output"] and not report.failures
    assert report.figures["cache_megabytes"]
    assert {f"{name}_s" for name in reading.COMMANDS} < report.figures.keys()
