"""`oven.connect`: the controller in a loop of your own, in PyTorch or in anything else.

    with oven.connect(optimizer=optimizer, scheduler=scheduler, max_steps=1000) as client:
        for step in range(1, 1001):
            ...                                          # forward, backward, optimizer.step(), scheduler.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()                                # what was decided is applied here
            if client.stopping:
                break

Without the `with`, say `client.close("completed")` at the end. Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oven_controller.mesh.identity import code_hash
from oven_controller.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client import OvenClient
from oven_learner.connection import Connection
from oven_learner.hf.learning_rate import LearningRateScale
from oven_learner.link import Link
from oven_learner.snapshots import Snapshots
from oven_learner.versions import installed

USER_BOUNDS = (0.1, 3.0)
"""Bounds of an attached run's scalars, as multiples of the user's own value."""
ANY_LOOP = (MetricSpec(name="loss", better="down"),)


def connect(
    actuators: Actuators | None = None,
    *,
    optimizer: Any = None,
    scheduler: Any = None,
    max_steps: int | None = None,
    seconds: float | None = None,
    step: int = 0,
    metrics: tuple[MetricSpec, ...] = ANY_LOOP,
    lr_bounds: tuple[float, float] = USER_BOUNDS,
    snapshots: Snapshots | None = None,
    recipe: str = "loop",
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
    link: Link | None = None,
) -> OvenClient:
    """A client that has announced the run: call `observe` and `poll` once an optimizer step, and `close` at the end.

    `actuators` are the knobs that may be turned. A torch `optimizer` (with its `scheduler`, if it has one) adds
    `optimizer.lr_scale`, within `lr_bounds` times your schedule; `snapshots` adds `run.checkpoint`, `run.rollback` and
    `run.undo_rollback`; `run.hold` and `run.stop` are always there. `metrics` are the names that `observe` will be
    given: agents that need another say that they cannot fire. `step` is where a resumed loop goes on. Under
    torch.distributed every rank calls it, `observe` and `poll` at the same steps, and rank 0 speaks to the bus: of the
    `metrics` it publishes the mean over the ranks that measured them, of others its own.

    Raises ConfigError when there is no controller to connect to, BusError or RefusedError when it does not answer or
    turns the credentials down. After that nothing that happens to the controller reaches the loop.
    """
    together = ranks.Ranks.join()
    connection: Connection | None = None
    if link is None:
        if together.leader:
            connection = Connection.find(url, run, creds)
            link = connection.link()
        else:
            link = ranks.SilentLink()
    knobs = actuators.copy() if actuators is not None else Actuators()
    if optimizer is not None:
        add_learning_rate(knobs, LearningRateScale(optimizer, scheduler), lr_bounds)
    if snapshots is not None:
        snapshots.across(together.same)
    client = OvenClient(
        link,
        knobs,
        recipe=recipe,
        metrics=metrics,
        max_steps=max_steps,
        seconds=seconds,
        rules=connection.rules if connection else None,
        lockstep=bool(connection and connection.lockstep),
        snapshots=snapshots,
        mesh_code=code_hash(),
        versions=installed(),
        keys=connection.keys if connection else None,
        ranks=together,
        averaged=[spec.name for spec in metrics],
    )
    client.start(step)
    return client


def add_learning_rate(actuators: Actuators, scale: LearningRateScale, bounds: tuple[float, float]) -> None:
    """`optimizer.lr_scale`. Raises ConfigError when the scale that a checkpoint brought lies outside the bounds."""
    actuators.scalar(
        "optimizer.lr_scale",
        scale.read,
        scale.write,
        low=bounds[0],
        high=bounds[1],
        scale="log",
        unit="× the schedule",
        risky=True,
    )
