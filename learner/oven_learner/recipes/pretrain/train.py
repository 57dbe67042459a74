"""The whole run: the job, its gauges, the controller attached, and a clean end."""

from __future__ import annotations

from collections.abc import Sequence

from oven_controller.protocol.messages import MetricSpec
from oven_learner.recipes.base import Order
from oven_learner.recipes.pretrain.evaluation import METRIC
from oven_learner.recipes.pretrain.job import build
from oven_learner.recipes.pretrain.settings import PretrainSettings
from oven_learner.recipes.pretrain.starts import parse_start
from oven_learner.recipes.runner import end_at_once_on_sigterm, run

LR_BOUNDS = (0.001, 1000.0)
"""Wide enough that no agent can read off them where a drawn start lies."""


def train(order: Order) -> None:
    steps = {"max_steps": order.steps} if order.steps else {}
    settings = PretrainSettings.model_validate({**order.options, **steps})
    end_at_once_on_sigterm()
    checkpoints = order.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    job = build(settings, parse_start(order.start, order.seed), order.seed, checkpoints, order.cache)
    run(
        job.trainer,
        order,
        mixture=job.mixture,
        lr_bounds=LR_BOUNDS,
        recipe="pretrain",
        metrics=gauges(job.held_out),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
    )


def gauges(held_out: Sequence[str]) -> tuple[MetricSpec, ...]:
    """What this recipe adds to the gauges that `attach` finds, by the sub-corpora of which something is held out."""
    of_parts = [f"{METRIC}/{name}" for name in held_out] if len(held_out) > 1 else []
    return tuple(
        MetricSpec(name=name, better="down", held_out=True, unit="bits per byte") for name in (METRIC, *of_parts)
    )
