"""What each training came to, in the results file, and the arrays that arms are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from oven_bench.replay_ab.ab_design import AbDesign, Training


class TrainingResult(BaseModel):
    """A line of the results file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    arm: str
    mix: str
    solved: tuple[tuple[int, ...], ...]
    """[task][sample], 0 or 1, on the same held-out tasks for all trainings."""
    reward: float | None = None
    """The mean over the last five steps of training; None: none was scored."""
    gauges: dict[str, float] = {}
    """The last value of each of the channels' metrics."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the worker's process, without the sandbox's."""

    @property
    def of(self) -> Training:
        """Whose it is."""
        return Training(self.seed, self.arm, self.mix)


Arms = dict[str, NDArray[np.int64]]
"""Arm → [seeds, tasks, samples]."""


def arrays(design: AbDesign, results: Iterable[TrainingResult]) -> tuple[Arms, Mapping[str, Arms]]:
    """The arms of all teachers, and by mix those of the others. Raises KeyError while a training is missing."""
    by_training = {result.of: result.solved for result in results}
    whole: Arms = {}
    mixes: dict[str, Arms] = {}
    seeds = range(design.first_seed, design.first_seed + design.seeds)
    for arm, mix in dict.fromkeys((one.arm, one.mix) for one in design.trainings):
        found = np.array([by_training[Training(seed, arm, mix)] for seed in seeds])
        if mix == design.mixes[0]:
            whole[arm] = found
        else:
            mixes.setdefault(mix, {})[arm] = found
    return whole, mixes


def learnt(results: Iterable[TrainingResult]) -> dict[str, dict[str, float]]:
    """Arm and mix → the means over seeds of the last reward of training and of the channels' last metrics: whether an
    arm's terms did anything at all."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in results:
        name = result.arm if result.mix == "all" else f"{result.arm} ({result.mix})"
        said = result.gauges | ({} if result.reward is None else {"reward": result.reward})
        for gauge, value in said.items():
            found.setdefault(name, {}).setdefault(gauge, []).append(value)
    return {arm: {name: sum(of) / len(of) for name, of in sorted(gauges.items())} for arm, gauges in found.items()}


def missing(design: AbDesign, results: Iterable[TrainingResult]) -> list[Training]:
    """The trainings that are still to be made, in their order."""
    done = {result.of for result in results}
    return [one for one in design.trainings if one not in done]
