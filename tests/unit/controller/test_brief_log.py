"""Reading long logs quickly gives the same status and decisions as reading every event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from tests.golden import recorded

from oven_bench.performance.example_run import LongLog
from oven_controller.stack.run_status import run_status
from oven_core.errors import ConfigError
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_runs.access.brief_log import BriefLog, newest_events
from oven_runs.access.decision_explanations import read_explanations
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import exported_events
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home, RunFolder

EVENTS = 3000


class FullRun(LocalRun):
    """Reads every event even where a brief log or a cache would be enough."""

    read_view = RunAccess.read_view

    async def raw_events(
        self, *, exact: bool = False, brief: bool = False, report: Callable[[str], object] = print
    ) -> AsyncGenerator[Event]:
        for event in exported_events(self.folder):
            yield event


def long_run(home: Path, events: int = EVENTS) -> RunFolder:
    folder = Home(home).create("long", "bench")
    LongLog(folder).write(events)
    return folder


def recorded_run(home: Path, name: str) -> RunFolder:
    events = recorded.events(name)
    folder = Home(home).create(recorded.run_of(events), "recorded")
    folder.export.write_text("".join(event.line() + "\n" for event in events))
    return folder


@pytest.mark.parametrize("name", recorded.stored())
def test_status_and_decisions_are_those_of_the_full_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_runs.access.brief_log.TAIL_BYTES", 20_000)
    folder = recorded_run(tmp_path, name)
    brief, full = (asyncio.run(run_status(access)) for access in (LocalRun(folder), FullRun(folder)))
    assert brief == full
    brief_log, full_log = (asyncio.run(read_explanations(access)) for access in (LocalRun(folder), FullRun(folder)))
    assert brief_log.by_id == full_log.by_id
    assert (brief_log.step, brief_log.tick, brief_log.newest_time) == (
        full_log.step,
        full_log.tick,
        full_log.newest_time,
    )


def test_a_brief_log_decodes_a_small_part_of_a_long_log(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    events = list(BriefLog(folder))
    assert len(events) < EVENTS / 10
    assert events[-1].seq == EVENTS


def test_a_rare_metric_keeps_its_newest_value(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    lines = folder.export.read_text().splitlines(keepends=True)
    rare = next(number for number, line in enumerate(lines) if number > 50 and '"Observation"' in line)
    lines[rare] = lines[rare].replace('"reward":', '"eval/reward":0.25,"reward":')
    folder.export.write_text("".join(lines))
    metrics: dict[str, float] = {}
    for event in BriefLog(folder):
        if isinstance(event.body, Observation):
            metrics.update(event.body.metrics)
    assert metrics["eval/reward"] == 0.25


def test_a_missing_event_is_reported_as_in_the_full_log(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    lines = folder.export.read_text().splitlines(keepends=True)
    del lines[1234]
    folder.export.write_text("".join(lines))
    with pytest.raises(ConfigError) as full:
        list(exported_events(folder))
    with pytest.raises(ConfigError) as brief:
        list(BriefLog(folder))
    assert str(brief.value) == str(full.value)


async def test_the_newest_events_are_verified(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    data = folder.export.read_text()
    last_decision = data.rindex("three agents of three")
    folder.export.write_text(data[:last_decision] + data[last_decision:].replace("three agents of three", "forged", 1))
    access = LocalRun(folder)
    newest = await access.newest(300)
    assert newest == [event async for event in access.events()][-300:]
    assert sum(isinstance(event.body, Malformed) for event in newest) == 1


async def test_a_missing_event_among_the_newest_is_reported(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    lines = folder.export.read_text().splitlines(keepends=True)
    del lines[-3]
    folder.export.write_text("".join(lines))
    with pytest.raises(ConfigError, match="1 events between them are missing"):
        await LocalRun(folder).newest(10)


def test_observations_with_costs_are_all_read(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    text = folder.export.read_text()
    folder.export.write_text(text.replace('"reward":', '"committee/tokens":1.0,"reward":'))
    observations = [event for event in BriefLog(folder) if isinstance(event.body, Observation)]
    assert len(observations) == text.count('"type": "Observation"')


async def test_the_newest_events_of_a_growing_log_end_with_its_last_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_runs.access.brief_log._CHUNK_BYTES", 1000)
    folder = long_run(tmp_path, 300)
    events = [event async for event in LocalRun(folder).events()]
    text = folder.export.read_text()
    for content, expected in (
        (text, events),
        (text.removesuffix("\n"), events[:-1]),
        (text + '{"seq": 301, "ti', events),
    ):
        folder.export.write_text(content)
        for count in (1, 2, 99, 299, 300, 301):
            assert newest_events(folder, count, LocalRun(folder).keyring(), growing=True) == expected[-count:]


def test_a_damaged_key_line_before_the_newest_events_is_reported_with_its_number(tmp_path: Path) -> None:
    folder = long_run(tmp_path)
    folder.export.write_text(folder.export.read_text().replace('"type": "RunStarted"', '"type" "RunStarted"', 1))
    with pytest.raises(ConfigError, match=r"log\.jsonl, line 1: "):
        newest_events(folder, 10, LocalRun(folder).keyring())
