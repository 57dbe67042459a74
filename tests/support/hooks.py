"""A fault's hooks, called by themselves on a trainee: with the guard before the onset, on the step that comes next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor

from oven_bench.gym.fault import Fault, Rewards, Step


def apply_batch(fault: Fault, batch: Any, cursor: int) -> Any:
    """At a position in the data; of no trainee."""
    nobody = SimpleNamespace(seed=0, gradient_steps=cursor, cursor=cursor, model=None, optimizer=None, settings={})
    return fault.apply_batch(batch, Step(cast(Any, nobody), fault))


def apply_settings(fault: Fault, run: Any) -> None:
    fault.apply_settings(run.step(fault))


def apply_weights(fault: Fault, run: Any) -> None:
    fault.apply_weights(run.step(fault))


def apply_loss(fault: Fault, loss: Tensor, run: Any) -> Tensor:
    return fault.apply_loss(loss, run.step(fault))


def apply_gradients(fault: Fault, run: Any) -> None:
    fault.apply_gradients(run.step(fault))


def apply_rewards(fault: Fault, rewards: Rewards, completions: Any, run: Any) -> Rewards:
    """To other completions than the trainee's own."""
    step = run.step(fault)
    step.completions = completions
    return fault.apply_rewards(rewards, step)
