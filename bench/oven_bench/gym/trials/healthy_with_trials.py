"""Healthy runs of the gym with every change tried first, against the same runs left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from oven_bench.gym.arms.controller import MESH_TRIALS
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.fault import Fault
from oven_bench.gym.faults import catalogue
from oven_bench.gym.runner import Ground
from oven_bench.gym.trainee_factory import Make
from oven_bench.gym.trials.planted_arms import TASKS
from oven_core.protocol.trial_messages import TrialEnded


@dataclass(frozen=True, slots=True)
class Played:
    """An episode, and the trials in it."""

    row: Row
    trials: Sequence[TrialEnded]


class Arm:
    """`mesh+trials` (rules.trials: all), which keeps the link of its last episode."""

    name, tries = MESH_TRIALS.name, MESH_TRIALS.tries
    last: LoopLink

    def link(self, run: str, rng: Random) -> LoopLink:
        self.last = MESH_TRIALS.link(run, rng)
        return self.last


def families() -> list[type[Fault]]:
    """Of the usual tasks: those in which nothing is wrong, and which agents were developed on."""
    known = catalogue.families().values()
    return [family for family in known if family.healthy and not family.held_out and family.kind in TASKS]


def played(make: Make, chosen: Sequence[type[Fault]], seeds: Sequence[int]) -> Iterator[Played]:
    """Ordered so that families of one task and seed, which share their beginning, follow each other."""
    for seed in seeds:
        for family in sorted(chosen, key=lambda family: (family.kind, family.name)):
            arm = Arm()
            row = Ground(family, seed, make).play(arm)
            yield Played(row, [e.body for e in arm.last.events if isinstance(e.body, TrialEnded)])
