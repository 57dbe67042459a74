"""Episodes in worker processes: which are missing, and their rows as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from oven_bench.gym import arm_registry, episode_schedule
from oven_bench.gym.arm import Arm, LearnsFromArm
from oven_bench.gym.episode import run
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.episode_schedule import HORIZON
from oven_bench.gym.fault import Fault
from oven_bench.gym.faults import catalogue
from oven_bench.gym.shared_prefix import Record, healthy, untouched
from oven_bench.gym.task_table import Kind
from oven_bench.gym.trainee_factory import Make, make
from oven_bench.worker_pool import workers


@dataclass(frozen=True, slots=True)
class Task:
    """The arms of one family and seed: they share what happens until one interferes. Plain values for a worker."""

    family: str
    kind: Kind
    seed: int
    arms: tuple[str, ...]
    past: tuple[Any, ...] = ()
    """What arms that learn may learn from."""
    horizon: int = HORIZON


def missing(
    families: Collection[type[Fault]],
    seeds: Collection[int],
    arms: Collection[str],
    rows: Collection[Row],
    horizon: int = HORIZON,
) -> list[Task]:
    """Ordered so that tasks that share a healthy beginning follow each other."""
    there = {row.key for row in rows if row.horizon == horizon}
    tasks = [
        Task(family.name, family.kind, seed, left, horizon=horizon)
        for family in families
        for seed in seeds
        if (left := tuple(arm for arm in arms if (family.name, seed, arm) not in there))
    ]
    return sorted(tasks, key=lambda task: (task.kind, task.seed, task.family))


def play(task: Task) -> tuple[list[Row], list[str]]:
    """In a worker: rows, and what failed."""
    family, arms = catalogue.families()[task.family], arm_registry.arms()
    ground = Ground(family, task.seed, make, task.horizon)
    rows, failures = [], []
    for name in task.arms:
        try:
            rows.append(ground.play(arms[name], task.past))
        except Exception as error:
            failures.append(f"{task.family}, seed {task.seed}, arm {name}: {type(error).__name__}: {error}")
    return rows, failures


class Ground:
    """One family and seed, on which any number of arms are played."""

    def __init__(self, family: type[Fault], seed: int, make: Make, horizon: int = HORIZON) -> None:
        self._family, self._seed, self._make, self._horizon = family, seed, make, horizon
        self.case = episode_schedule.drawn(family, seed)
        beginning = _healthy(make, family.kind, seed, horizon)
        self._alone = untouched(make, family.kind, seed, self.case, beginning, horizon)
        self._twin = beginning.loss(make(family.kind, seed), episode_schedule.end(self.case, horizon))

    def play(self, arm: Arm, past: Sequence[Any] = ()) -> Row:
        """Raises what the arm or the trainee raised."""
        family, began = self._family, time.process_time()
        end = episode_schedule.end(self.case, self._horizon)
        if isinstance(arm, LearnsFromArm):
            arm.learn(past)
        ended = run(self._make(family.kind, self._seed), self.case, arm, self._alone, self._horizon)
        return Row(
            family=family.name,
            kind=family.kind,
            healthy=family.healthy,
            held_out=family.held_out,
            seed=self._seed,
            arm=arm.name,
            onset=self.case.onset,
            loss=ended.loss,
            nothing=self._alone.losses[end],
            twin=self._twin,
            steps=ended.steps,
            interventions=ended.interventions,
            seconds=round(time.process_time() - began, 3),
            kept=ended.kept,
            horizon=self._horizon,
        )


@lru_cache(maxsize=2)
def _healthy(make: Make, kind: Kind, seed: int, horizon: int) -> Record:
    return healthy(make, kind, seed, horizon)


def played(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[list[Row], list[str]]]:
    """Rows of a task and what failed in it, as it ends; `jobs` at a time, one thread each; one job: in this process."""
    return _in_order(tasks) if jobs == 1 else _at_once(tasks, jobs)


def _in_order(tasks: Sequence[Task]) -> Iterator[tuple[list[Row], list[str]]]:
    _one_thread()
    yield from map(play, tasks)


def _at_once(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[list[Row], list[str]]]:
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
    with workers(jobs, _one_thread) as pool:
        try:
            for future in as_completed([pool.submit(play, task) for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
