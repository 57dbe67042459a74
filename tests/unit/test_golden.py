"""What is computed now against the golden files: all that is quick.

`python -m tests.golden.make --check` compares the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.golden import protocol, recorded, replays
from tests.golden.entry_points import installed
from tests.golden.make import AGENTS
from tests.golden.store import FOLDER, Json, Limits, differences, read

from oven_core.protocol.events import Event

LOGS = recorded.stored()
BACKTESTED = [name for name in LOGS if name.startswith("run-") or name == "episode-pretraining.careless_resume"]


@pytest.fixture(scope="module", autouse=True)
def entry_points() -> Iterator[None]:
    with installed(AGENTS):
        yield


@pytest.fixture(scope="module")
def stored_logs() -> Json:
    return read(replays.FILE)


def same(stored: Json, now: Json) -> None:
    assert list(differences(stored, now)) == []


def test_the_protocol_is_the_same() -> None:
    for file, now in protocol.documents(Limits()):
        same(read(file), now)


def test_every_recorded_log_has_its_goldens() -> None:
    assert sorted(read(replays.FILE) if (FOLDER / replays.FILE).exists() else []) == LOGS


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_log_is_read_and_written_as_it_stands(name: str) -> None:
    assert [Event.from_line(line).line() for line in recorded.lines(name)] == recorded.lines(name)


@pytest.mark.parametrize("name", LOGS)
def test_the_mesh_decides_the_same_over_a_recorded_log(name: str, stored_logs: Json) -> None:
    same(stored_logs[name]["replay"], replays.replayed(recorded.events(name)))


@pytest.mark.parametrize("name", LOGS)
def test_agents_prior_and_mesh_say_the_same_to_a_recorded_learner(name: str, stored_logs: Json) -> None:
    same(stored_logs[name]["again"], replays.again(recorded.events(name)))


@pytest.mark.parametrize("name", BACKTESTED)
def test_each_agent_votes_the_same_over_a_recorded_log(name: str, stored_logs: Json) -> None:
    log = recorded.events(name)
    same(stored_logs[name]["backtest"], {agent: replays.backtested(log, agent) for agent in AGENTS})
