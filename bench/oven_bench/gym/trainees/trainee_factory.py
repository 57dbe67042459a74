"""The trainees by kind, imported when one is made: a kind that is not asked for costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from oven_bench.gym.fault import Kind, Trainee

TRAINEES: Mapping[Kind, str] = {
    "pretraining": "oven_bench.gym.trainees.pretraining:Pretraining",
    "grpo": "oven_bench.gym.trainees.grpo:Grpo",
}

Make = Callable[[Kind, int], Trainee]


def make(kind: Kind, seed: int) -> Trainee:
    """A fresh one: each episode has its own, so that nothing of one is left in the next."""
    module, _, name = TRAINEES[kind].partition(":")
    return cast(Trainee, getattr(import_module(module), name)(seed))
