"""The whole run: the job, its gauges, the controller attached, and a clean end."""

from __future__ import annotations

from oven_controller.protocol.messages import MetricSpec
from oven_learner.recipes.base import Order
from oven_learner.recipes.distillation.job import build
from oven_learner.recipes.distillation.settings import DistillationSettings
from oven_learner.recipes.distillation.starts import parse_start
from oven_learner.recipes.grpo.train import LR_BOUNDS
from oven_learner.recipes.runner import end_at_once_on_sigterm, run


def train(order: Order) -> None:
    steps = {"max_steps": order.steps} if order.steps else {}
    settings = DistillationSettings.model_validate({**order.options, **steps})
    end_at_once_on_sigterm()
    checkpoints = order.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    job = build(settings, parse_start(order.start), order.seed, checkpoints, order.cache)
    run(
        job.trainer,
        order,
        lr_bounds=LR_BOUNDS,
        recipe="distillation",
        metrics=gauges(settings),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
        teachers=job.teachers,
    )


def gauges(settings: DistillationSettings) -> tuple[MetricSpec, ...]:
    """What this recipe adds to the gauges that `attach` finds."""
    return (
        MetricSpec(name="entropy", unit="nats per token"),
        MetricSpec(name="completions/mean_length", unit="tokens"),
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0, unit="greedy, mean over levels"),
        *(MetricSpec(name=f"eval/accuracy/{n}", better="up", held_out=True, ceiling=1.0) for n in settings.levels),
    )
