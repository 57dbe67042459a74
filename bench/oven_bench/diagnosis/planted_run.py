"""A gym run that no one interferes with, as a log: of a known fault, or of none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from oven_bench.gym import episode_schedule
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.episode import run
from oven_bench.gym.faults import catalogue
from oven_bench.gym.shared_prefix import Record, healthy, untouched
from oven_bench.gym.task_table import Kind
from oven_bench.gym.trainee_factory import make
from oven_core.protocol.events import Event


@dataclass(frozen=True)
class PlantedRun:
    """What is diagnosed, and what is known of it."""

    family: str
    seed: int
    healthy: bool
    onset: int
    """The first tick whose step the fault acts on; of a healthy run it means nothing."""
    events: tuple[Event, ...]
    name: str


class _Watched:
    """An arm without agents: its link keeps the log."""

    name: Final = "watched"

    def __init__(self) -> None:
        self.made: LoopLink | None = None
        self.run = ""

    def link(self, run: str, rng: Random) -> LoopLink:
        self.run, self.made = run, LoopLink(run, ())
        return self.made


def planted(family: str, seed: int) -> PlantedRun:
    """About 230 steps; the same for the same family and seed. Raises KeyError for a family that there is not."""
    kind = catalogue.families()[family]
    case = episode_schedule.drawn(kind, seed)
    record = untouched(make, kind.kind, seed, case, _beginning(kind.kind, seed))
    arm = _Watched()
    run(make(kind.kind, seed), case, arm, record)
    assert arm.made is not None
    return PlantedRun(family, seed, kind.healthy, case.onset + 1, tuple(arm.made.events), arm.run)


@lru_cache(maxsize=2)
def _beginning(kind: Kind, seed: int) -> Record:
    return healthy(make, kind, seed)
