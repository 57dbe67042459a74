"""Episodes that are missing, and the jobs that play them."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from oven_bench.gym import shared_prefix
from oven_bench.gym.arms import Arm, arms
from oven_bench.gym.episode import play
from oven_bench.gym.fault import Fault, Make, make
from oven_bench.gym.faults import families
from oven_bench.gym.score import Row
from oven_bench.gym.shared_prefix import Record, healthy, untouched
from oven_bench.gym.task_table import Kind


@dataclass(frozen=True, slots=True)
class Job:
    """The arms to play on one family and seed. They share everything before their first intervention."""

    family: str
    kind: Kind
    seed: int
    arms: tuple[str, ...]


def missing_jobs(
    faults: Collection[type[Fault]], seeds: Collection[int], arms: Collection[str], rows: Collection[Row]
) -> list[Job]:
    """Jobs for all episodes that are not among the rows. Jobs with the same healthy beginning follow each other."""
    done = {row.key for row in rows}
    jobs = [
        Job(family.name, family.kind, seed, missing)
        for family in faults
        for seed in seeds
        if (missing := tuple(arm for arm in arms if (family.name, seed, arm) not in done))
    ]
    return sorted(jobs, key=lambda job: (job.kind, job.seed, job.family))


def run_job(job: Job) -> tuple[list[Row], list[str]]:
    """The rows of a job's episodes, and a line for each that failed."""
    ground = Ground(families()[job.family], job.seed, make)
    rows, failures = [], []
    for name in job.arms:
        try:
            rows.append(ground.play(arms()[name]))
        except Exception as error:
            failures.append(f"{job.family}, seed {job.seed}, arm {name}: {type(error).__name__}: {error}")
    return rows, failures


class Ground:
    """One family and seed, on which any number of arms can play."""

    def __init__(self, family: type[Fault], seed: int, make: Make) -> None:
        self._family, self._seed, self._make = family, seed, make
        self.fault = shared_prefix.draw(family, seed)
        beginning = _healthy(make, family.kind, seed)
        self._untouched = untouched(make, family.kind, seed, self.fault, beginning)
        self._twin_loss = beginning.loss(make(family.kind, seed), shared_prefix.last_step(self.fault))

    def play(self, arm: Arm) -> Row:
        """Play one arm. Raises what the arm or the trainee raised."""
        family, start = self._family, time.process_time()
        outcome = play(self._make(family.kind, self._seed), self.fault, arm, self._untouched)
        return Row(
            family=family.name,
            kind=family.kind,
            healthy=family.healthy,
            seed=self._seed,
            arm=arm.name,
            onset=self.fault.onset,
            loss=outcome.loss,
            nothing=self._untouched.losses[shared_prefix.last_step(self.fault)],
            twin=self._twin_loss,
            steps=outcome.steps,
            interventions=outcome.interventions,
            seconds=round(time.process_time() - start, 3),
            outcomes=outcome.outcomes,
        )


@lru_cache(maxsize=2)
def _healthy(make: Make, kind: Kind, seed: int) -> Record:
    return healthy(make, kind, seed)
