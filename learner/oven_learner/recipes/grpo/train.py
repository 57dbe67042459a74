"""The whole run: the job, its actuators and gauges, the controller attached, and an end in order."""

from __future__ import annotations

import logging
import signal
import sys
import types

from oven_controller.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.attachment import attach
from oven_learner.recipe import Order
from oven_learner.recipes.grpo.job import Job, build
from oven_learner.recipes.grpo.rewards import RULES, WEIGHTS
from oven_learner.recipes.grpo.settings import GrpoSettings
from oven_learner.recipes.grpo.starts import parse_start
from oven_learner.rewards import convene

log = logging.getLogger("oven.learner")

LR_BOUNDS = (0.01, 100.0)
"""Wide enough that no agent can read off them where a drawn start lies."""
BETA_BOUNDS = (0.01, 10.0)


def train(order: Order) -> None:
    settings = GrpoSettings.model_validate({**order.options, **({"max_steps": order.steps} if order.steps else {})})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until there is something to end in order
    start = parse_start(order.start, order.seed, settings.levels)
    checkpoints = order.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    judges = convene(RULES, weights=WEIGHTS, seed=order.seed)
    job = build(settings, start, order.seed, checkpoints, order.cache, judges)
    attachment = attach(
        job.trainer,
        actuators=knobs(job),
        lr_bounds=LR_BOUNDS,
        recipe="grpo",
        metrics=gauges(settings),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
        seconds=order.seconds,
        teachers=job.teachers,
        beta_bounds=BETA_BOUNDS,
        committee=job.committee,
        stateful={"data.mixture": job.mixture},
    )

    def end(number: int, _: types.FrameType | None) -> None:
        if attachment.client is None:
            sys.exit(0)
        attachment.client.request_stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, end)
    job.trainer.train(resume_from_checkpoint=order.resume or None)


def knobs(job: Job) -> Actuators:
    """What this recipe adds to the knobs that `attach` finds."""
    actuators = Actuators()
    actuators.simplex("data.mixture", job.mixture.get, job.mixture.set)
    return actuators


def gauges(settings: GrpoSettings) -> tuple[MetricSpec, ...]:
    """What this recipe adds to the gauges that `attach` finds."""
    return (
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0, unit="greedy, mean over levels"),
        *(MetricSpec(name=f"eval/accuracy/{n}", better="up", held_out=True, ceiling=1.0) for n in settings.levels),
        *(MetricSpec(name=f"reward/{name}", better="up", ceiling=1.0) for name in settings.levels),
    )
