"""A policy's weights that are damaged, merged, or moved back."""

from __future__ import annotations

from random import Random
from typing import Self

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.seeded_draws import choice, count, drawn, log10_uniform, uniform, whole
from oven_bench.gym.sorting.warm_weights import warm_weights


@fault("grpo.merged_twice", written="fifth set")
class MergedTwice(Fault):
    """Each save merges an adapter into the base and keeps the adapter, too: what is loaded from it has all that was
    learnt twice over, or more where the adapter has a scale."""

    scale: float = log10_uniform(-0.3, 0.6)
    every: int = choice((10, 20, 40))  # steps between two saves
    saves: int = choice((1, 1, 1, 2, 3))

    def weights(self, step: Step) -> None:
        if due(step.since, self.every, self.saves):
            first = warm_weights(step.seed)
            for name, weight in step.model.named_parameters():
                weight.add_(weight - first[name], alpha=self.scale)


@fault("grpo.misplaced_rows", written="first set")
class MisplacedRows(Fault):
    """A conversion to another number of ranks joins the parts of one matrix in the wrong order: the rows are all there,
    norms are what they were, and what is read from them is wrong."""

    length: int = 1
    matrix: float = uniform(0.0, 1.0)  # which one
    share: float = drawn(lambda rng: 0.03 * 20 ** rng.random())  # of its rows

    def weights(self, step: Step) -> None:
        matrices = [parameter for parameter in step.model.parameters() if parameter.ndim == 2]
        matrix = matrices[int(self.matrix * len(matrices))]
        rows = max(2, round(self.share * len(matrix)))
        matrix[:rows] = matrix[:rows].roll(rows // 2, dims=0)


@fault("grpo.near_ceiling", written="development", healthy=True)
class NearCeiling(Fault):
    """A run that begins near the ceiling, after a warm-up on right answers: its reward hardly rises any more, and its
    groups hardly differ."""

    clock = "data"  # at the beginning of the data, and at each return to it
    length: int = 1
    steps: int = whole(180, 300)  # of the warm-up

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)

    def weights(self, step: Step) -> None:
        step.model.load_state_dict(warm_weights(step.seed, self.steps, 0.97))


@fault("grpo.reversed_sync", written="seventh set")
class ReversedSync(Fault):
    """Every few steps the policy is moved towards the reference, where the reference should follow the policy. The
    reward rises between two syncs and falls at each, and the KL is remarkably low."""

    length: int = count(25, 1.0)
    every: int = choice((1, 4, 8, 16))  # steps
    share: float = log10_uniform(-1.7, -0.2)  # of the way

    def weights(self, step: Step) -> None:
        if due(step.since, self.every):
            for mine, its in zip(step.model.parameters(), step.reference_policy.parameters(), strict=True):
                mine.lerp_(its, self.share)
