"""The gym against its golden files: what every family draws, what a few do to a run, and a few whole episodes.

`python -m bench_testing.make_golden --check` compares the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.golden.entry_points import installed
from tests.golden.make import AGENTS
from tests.golden.store import Limits, differences, numbers, read

from bench_testing import episodes, families
from oven_bench.gym.faults import families as families_by_name
from oven_bench.gym.shared_prefix import draw
from oven_bench.gym.task_table import TASKS, Kind

FEW, SEED, STEPS = 6, 1, Limits(steps=20)
"""Families of each task that are played, and how far."""
kinds = pytest.mark.parametrize("kind", TASKS)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def skip_elsewhere(stored: dict[str, object]) -> None:
    if numbers() != stored["numbers"]:
        pytest.skip("the goldens are of another processor, Python or torch: its losses have other last bits")


@kinds
def test_every_family_draws_the_same(kind: Kind) -> None:
    stored = read(families.FILE.format(kind))["cases"]
    now = {
        f"{name} {seed}": families.drawn(draw(family, seed))
        for name, family in families_by_name().items()
        if family.kind == kind
        for seed in families.SEEDS
    }
    before = {name: {key: case[key] for key in ("onset", "drawn")} for name, case in stored.items()}
    assert list(differences(before, now)) == []


@kinds
@pytest.mark.usefixtures("one_thread")
def test_a_few_families_do_the_same_to_a_run(kind: Kind) -> None:
    stored = read(families.FILE.format(kind))
    skip_elsewhere(stored)
    own = [family for family in families_by_name().values() if family.kind == kind]
    twin = families.Twin(kind, SEED)
    assert list(differences(stored["twins"][str(SEED)], twin.told())) == []
    for family in own[:: len(own) // FEW][:FEW]:
        case = families.cut(stored["cases"][f"{family.name} {SEED}"], STEPS)
        assert list(differences({family.name: case}, {family.name: families.fate(family, SEED, twin, STEPS)})) == []


@pytest.mark.parametrize("name", ["grpo.judge_outage", "pretraining.not_a_number"])
@pytest.mark.usefixtures("one_thread")
def test_an_episode_under_the_controller_is_the_same(name: str) -> None:
    stored = read(episodes.FILE)
    skip_elsewhere(stored)
    with installed(AGENTS):
        now, _ = episodes.played(families_by_name()[name])
    assert list(differences(stored["cases"][name], now)) == []
