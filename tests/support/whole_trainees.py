"""The gym's own trainees for a few steps, and the families that are tried on them: those written blind."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.faults.catalogue import families
from oven_bench.gym.tasks.grpo.trainee import Grpo
from oven_bench.gym.tasks.pretraining.trainee import Pretraining

ONSET, END_OF_RUN, SEED = 3, 9, 1
OPEN = ("development", "first set", "trials set")
Metrics = list[dict[str, float]]


def written_blind() -> dict[str, type[Fault]]:
    """By name, without sight of agents or graph: those that are held out, or were once, and the sets A to D. The first
    set has trainees of its own (test_gym_first_set.py); the trials set was written openly."""
    return {name: one for name, one in families().items() if one.written not in OPEN}


@overload
def trainee(kind: Literal["pretraining"]) -> Pretraining: ...
@overload
def trainee(kind: Literal["grpo"]) -> Grpo: ...
@overload
def trainee(kind: str) -> Trainee: ...
def trainee(kind: str) -> Trainee:
    return Pretraining(SEED) if kind == "pretraining" else Grpo(SEED)


def stepped(run: Trainee, to: int, case: Fault | None) -> Metrics:
    return [run.train_step(case) for _ in range(to - run.gradient_steps)]


def numbers(run: Trainee) -> list[Tensor]:
    """A copy of weights and moments."""
    parameters = list(run.model.parameters())
    moments = [run.optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq", "step")]
    return [one.detach().clone() for one in (*parameters, *moments)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
