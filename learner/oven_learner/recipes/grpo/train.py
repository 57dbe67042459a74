"""The whole run: the job, its actuators and gauges, the controller attached, and a clean end."""

from __future__ import annotations

from oven_controller.protocol.messages import MetricSpec
from oven_learner.recipes.base import Order
from oven_learner.recipes.grpo.job import build
from oven_learner.recipes.grpo.rewards import RULES, WEIGHTS
from oven_learner.recipes.grpo.settings import GrpoSettings
from oven_learner.recipes.grpo.starts import parse_start
from oven_learner.recipes.runner import end_at_once_on_sigterm, run
from oven_learner.rewards import convene

LR_BOUNDS = (0.01, 100.0)
"""Wide enough that no agent can read off them where a drawn start lies."""
BETA_BOUNDS = (0.01, 10.0)


def train(order: Order) -> None:
    settings = GrpoSettings.model_validate({**order.options, **({"max_steps": order.steps} if order.steps else {})})
    end_at_once_on_sigterm()
    start = parse_start(order.start, order.seed, settings.levels)
    checkpoints = order.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    judges = convene(RULES, weights=WEIGHTS, seed=order.seed)
    job = build(settings, start, order.seed, checkpoints, order.cache, judges)
    run(
        job.trainer,
        order,
        mixture=job.mixture,
        lr_bounds=LR_BOUNDS,
        recipe="grpo",
        metrics=gauges(settings),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
        teachers=job.teachers,
        beta_bounds=BETA_BOUNDS,
        committee=job.committee,
    )


def gauges(settings: GrpoSettings) -> tuple[MetricSpec, ...]:
    """What this recipe adds to the gauges that `attach` finds."""
    return (
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0, unit="greedy, mean over levels"),
        *(MetricSpec(name=f"eval/accuracy/{n}", better="up", held_out=True, ceiling=1.0) for n in settings.levels),
        *(MetricSpec(name=f"reward/{name}", better="up", ceiling=1.0) for name in settings.levels),
    )
