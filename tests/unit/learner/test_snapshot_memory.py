"""How many snapshots fit into memory, where they are stored, and what the log says about it."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from oven_learner.optim.snapshot import copy_state, restored_state
from oven_learner.ranks import Ranks
from oven_learner.rollback import snapshot_memory
from oven_learner.rollback.memory_snapshots import MAX_LEVELS, Snapshots, snapshot_count
from oven_learner.rollback.snapshot_memory import available_memory, best_weights_fit, plan_snapshots

GB = 10**9


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 400 GB and four ranks, whose snapshots may take 25 GB each."""
    monkeypatch.setattr(snapshot_memory, "available_memory", lambda: 400 * GB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("size", "count", "device"),
    [
        (512 * 2**20 // 15, 15, None),
        (512 * 2**20 // 15 + 1, 15, torch.device("cpu")),
        (25 * GB // 15 + 1, 13, torch.device("cpu")),
        (5 * GB, 5, torch.device("cpu")),
    ],
)
def test_large_snapshots_are_fewer_and_stored_in_the_hosts_memory(
    size: int, count: int, device: torch.device | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oven.learner")
    memory = plan_snapshots(size, Ranks())
    assert memory is not None and (snapshot_count(memory.levels), memory.device) == (count, device)
    assert f"at most {memory.total / 1e6:,.0f} MB on each rank: {count} of {size / 1e6:,.0f} MB" in caplog.text


@pytest.mark.usefixtures("host")
def test_what_does_not_fit_is_refused_with_figures(caplog: pytest.LogCaptureFixture) -> None:
    assert plan_snapshots(5 * GB + 1, Ranks()) is None
    assert "5 of 5,000 MB exceed 25,000 MB" in caplog.text and "start fewer ranks" in caplog.text


@pytest.mark.usefixtures("host")
def test_all_ranks_follow_the_one_with_the_least_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    monkeypatch.setattr(ranks, "all_gather", lambda own: [own, (0, 2)])
    memory = plan_snapshots(GB, ranks)
    assert memory is not None and memory.levels == 2
    monkeypatch.setattr(ranks, "all_gather", lambda own: [own, (0, 0)])
    assert plan_snapshots(GB, ranks) is None


@pytest.mark.usefixtures("host")
def test_two_copies_of_the_weights_fit_or_not() -> None:
    assert best_weights_fit(37 * GB, Ranks()) and not best_weights_fit(38 * GB, Ranks())


def test_a_cgroup_limits_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_memory, "CGROUP", tmp_path)
    unlimited = available_memory()
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert available_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == pytest.approx(unlimited, rel=0.5)


def test_fewer_levels_keep_fewer_snapshots() -> None:
    for levels in range(1, MAX_LEVELS + 1):
        states: list[object] = []

        def take(states: list[object] = states) -> tuple[int, object]:
            copied = type("Copied", (), {})()
            states.append(weakref.ref(copied))
            return 0, copied

        snapshots = Snapshots(take, lambda _: None, levels=levels)
        for tick in range(500):
            snapshots.take(tick)
        snapshots.restore(400, 500)
        assert sum(state() is not None for state in states) <= snapshot_count(levels)  # type: ignore[operator]


def test_restoring_overwrites_what_is_there_and_rebuilds_what_is_not() -> None:
    weight, moment = torch.ones(3), torch.full((2,), 5.0)
    state = {"weight": weight, "state": {0: {"moment": moment, "steps": 7}}, "groups": [{"lr": 0.1, "betas": (0.9, 1)}]}
    saved = copy_state(state)
    weight.zero_()
    now = {"weight": weight, "state": {}, "groups": [{"lr": 0.5, "betas": (0.9, 1)}]}
    restored = restored_state(saved, now)
    assert restored["weight"] is weight and weight.tolist() == [1, 1, 1]
    rebuilt = restored["state"][0]
    assert rebuilt["moment"].tolist() == [5, 5] and rebuilt["moment"] is not moment and rebuilt["steps"] == 7
    assert restored["groups"] == [{"lr": 0.1, "betas": (0.9, 1)}]
    rebuilt["moment"].zero_()
    assert restored_state(saved, {})["state"][0]["moment"].tolist() == [5, 5], "the copy is still the same"
    assert not isinstance(rebuilt["moment"], DTensor)
