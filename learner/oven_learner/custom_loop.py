"""`oven.connect`: the controller in your own loop, in PyTorch or in anything else.

    with oven.connect(model=model, optimizer=optimizer, scheduler=scheduler, max_steps=1000) as client:
        for step in range(1, 1001):
            ...                                          # forward, backward, optimizer.step(), scheduler.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()                                # what was decided is applied here
            if client.stopping:
                break

Without the `with`, say `client.close("completed")` at the end. Torch is imported only where there is an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.state import held_out
from oven_core.protocol.actions import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client.best_weights import BestWeights
from oven_learner.client.held_out_evaluation import Evaluation, Measured
from oven_learner.client.loop_client import LoopClient, idle_client
from oven_learner.client.run_start import installed, next_training_name
from oven_learner.completions.redaction import Redact
from oven_learner.completions.sampling import sampling_of
from oven_learner.link.find_controller import Connection, Mode, seek
from oven_learner.link.link_interface import Link
from oven_learner.optim.lr_scale import USER_BOUNDS, LearningRateScale
from oven_learner.optim.rate_readback import RateReadback
from oven_learner.rollback.in_memory import CREDIT_S, KEPT, Snapshots

if TYPE_CHECKING:
    from oven_learner.optim.step_gauges import StepGauges

ANY_LOOP = (MetricSpec(name="loss", better="down"),)


def connect(
    actuators: Actuators | None = None,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    clip: float | None = None,
    evaluate: Callable[[], Measured] | None = None,
    evaluate_every: int = 20,
    max_steps: int | None = None,
    seconds: float | None = None,
    step: int = 0,
    metrics: tuple[MetricSpec, ...] = ANY_LOOP,
    lr_bounds: tuple[float, float] = USER_BOUNDS,
    snapshots: Snapshots | None = None,
    recipe: str = "loop",
    training: str | None = None,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
    completions: Mapping[str, Any] | None = None,
    redact: Redact | None = None,
    optional: bool = False,
    link: Link | None = None,
) -> LoopClient:
    """A client that has announced the run: call `observe` and `poll` once an optimizer step, and `close` at the end.

    `actuators` are the knobs that may be turned. A torch `optimizer` (with its `scheduler`, if it has one) adds
    `optimizer.lr_scale`, within `lr_bounds` times your schedule, and `optimizer.weight_decay` where it has any; its
    steps measure the learning rate, the gradient's norm and what oven_learner.optim.gauges has. With the `model` it
    adds `run.checkpoint`, `run.rollback` and `run.undo_rollback` where copies fit into memory; `snapshots` are your own
    copies instead. With `evaluate` as well it adds `run.best`: which weights the run ends with. `clip` clips gradients
    to that norm before each step, and adds `grad.clip`: leave your own clipping out. `evaluate` measures held-out
    metrics, at the start, every `evaluate_every` steps, at `max_steps` and whenever an agent asks: `run.evaluate`.
    `run.hold` and `run.stop` are always there.

    `metrics` are the names that `observe` will be given: agents that need another say that they cannot fire; what
    `evaluate` returns is held out, and which way is better is known by the usual names, or said here. `step` is where a
    resumed loop continues. `training` names this training where the script has several one after another, or connects
    again to continue with the same one; without it they are counted. Under torch.distributed every rank calls it,
    `observe` and `poll` at the same steps, and rank 0 speaks to the bus: of `metrics` and what is evaluated it
    publishes the mean over the ranks that measured them, of others its own.

    `completions` and `redact` are as `attach` has them, for a trainer that samples groups: PolicyTrainer hands them on.

    Raises ConfigError when there is no controller to connect to and it is not `optional`, BusError or RefusedError when
    it does not answer or turns the credentials down. After that nothing that happens to the controller reaches the
    loop.
    """
    if evaluate_every < 1:
        raise ConfigError(f"evaluate_every={evaluate_every} is not a number of steps; give 1 or more")
    if clip is not None and optimizer is None:
        raise ConfigError("clip= needs the optimizer whose gradients are clipped: give optimizer= too")
    knobs = actuators.copy() if actuators is not None else Actuators()
    mode = Mode.of(optional)
    together = ranks.Ranks.join()
    connection: Connection | None = None
    given = link
    if link is None or mode is Mode.DISABLED:
        there, connection = seek(mode, url, run, creds, leader=together.leader, same=together.same)
        if not there:
            idle = idle_client(mode, knobs, step=step, max_steps=max_steps, seconds=seconds, ranks=together)
            if clip is not None:
                _clip_alone(idle, optimizer, clip)
            return idle
        link = connection.link() if connection is not None else ranks.SilentLink()
    sampling = sampling_of(connection.completions if connection is not None else None, completions, redact)
    evaluation = None
    measured: tuple[MetricSpec, ...] = ()
    if evaluate is not None:
        evaluation = Evaluation(evaluate, evaluate_every, model, max_steps)
        evaluation.now()
        measured = evaluation.announced(metrics)
        if EVALUATE not in knobs:
            knobs.action(EVALUATE, evaluation.ask, effect="measures")
    client: LoopClient
    with ExitStack() as hooks:  # what fails from here on leaves the optimizer as it was
        rate = None
        if optimizer is not None:
            rate = RateReadback(LearningRateScale(optimizer, scheduler))
            hooks.callback(rate.close)
            rate.announce(knobs, lr_bounds)
        lockstep = bool(connection and connection.lockstep)
        if snapshots is None and model is not None and rate is not None:
            snapshots = _copies(model, rate, scheduler, lambda: client, lockstep)
        if snapshots is not None:
            snapshots.across(together.same)
        gauges = None
        if rate is not None and hasattr(rate.scale.optimizer, "register_step_pre_hook"):
            gauges = _gauges(knobs, rate, model, clip, lambda *reading: client.publish(*reading), together.leader)
            hooks.callback(gauges.close)
        own = _merged(metrics, measured)
        announced = _merged(own, gauges.announced() if gauges is not None else ())
        client = LoopClient(
            link,
            knobs,
            recipe=recipe,
            training=training or next_training_name(connection.run if connection else "", given),
            metrics=announced,
            max_steps=max_steps,
            seconds=seconds,
            rules=connection.rules if connection else None,
            lockstep=lockstep,
            snapshots=snapshots,
            mesh_code=mesh_code_hash(),
            versions=installed(),
            keys=connection.keys if connection else None,
            ranks=together,
            averaged=[spec.name for spec in own],
            settle=lambda: client.settle(),
            unmeasured=gauges.unmeasured if gauges is not None else {},
            best=_best(model, rate, evaluation, announced, lambda: client, together),
        )
        client.gauges, client.rate, client.evaluation = gauges, rate, evaluation
        client.start(step)
        client.hooks, client.sampling = hooks.pop_all(), sampling if together.leader else None
    client.began(step)
    return client


def _copies(
    model: Any, rate: RateReadback, scheduler: Any, client: Callable[[], LoopClient], lockstep: bool
) -> Snapshots | None:
    """None where they do not fit into memory, or would be parts of a model."""
    from oven_learner.optim import snapshot

    if snapshot.sharded(model) or (KEPT + 2) * snapshot.size(model) > snapshot.LIMIT_BYTES:
        return None
    kept = snapshot.LoopSnapshot(model, rate.scale, scheduler, lambda: client().put_back())
    # In lockstep what is gone back to must not depend on the clock.
    credit = math.inf if lockstep else CREDIT_S
    return Snapshots(lambda: (client().step, kept.take()), kept.restore, credit=credit)


def _best(
    model: Any,
    rate: RateReadback | None,
    evaluation: Evaluation | None,
    announced: tuple[MetricSpec, ...],
    client: Callable[[], LoopClient],
    together: ranks.Ranks,
) -> BestWeights | None:
    """None where the held-out metric that stands for the whole is not measured by `evaluate`, or no copy fits."""
    metric = held_out(announced)
    if model is None or rate is None or evaluation is None or metric is None or metric.name not in evaluation.last:
        return None
    from oven_learner.optim import snapshot

    if snapshot.sharded(model) or not snapshot.best_fits(model, KEPT + 2):
        return None
    copies = snapshot.WeightCopies(model, lambda: client().put_back())
    name = metric.name
    return BestWeights(
        metric, take=copies.take, restore=copies.restore, read=lambda: evaluation.read(name), ranks=together
    )


def _gauges(
    knobs: Actuators, rate: RateReadback, model: Any, clip: float | None, publish: Any, heard: bool
) -> StepGauges:
    """Raises ConfigError where gradients are to be clipped that are not whole."""
    from oven_learner.optim import snapshot
    from oven_learner.optim import weight_decay as decay
    from oven_learner.optim.gauges import OptimizerGauges
    from oven_learner.optim.gradient_clip import Clip
    from oven_learner.optim.step_gauges import StepGauges

    cut = snapshot.sharded(model) if model is not None else ""
    flat = cut if cut and "FSDP2" not in cut else ""  # FSDP2 puts a norm together by itself
    if flat and clip is not None:
        raise ConfigError(f"clip={clip:g} needs whole gradients, and {flat}: clip in the loop, and leave clip= out")
    clipping = Clip(clip) if clip is not None else None
    if clipping is not None:
        clipping.announce(knobs, USER_BOUNDS)
    decay.announce(rate.scale.optimizer, knobs)
    gauges = OptimizerGauges(rate.scale.optimizer, model, heard=heard, sharded=cut)
    return StepGauges(
        rate,
        gauges,
        publish,
        clip=clipping,
        heard=heard,
        unmeasured=f"needs whole gradients, and {flat}" if flat else "",
    )


def _clip_alone(client: LoopClient, optimizer: Any, clip: float) -> None:
    """The script asked for it, and it is part of its training."""
    from oven_learner.optim.gradient_clip import Clip

    client.hooks.callback(Clip(clip).always(optimizer).remove)


def _merged(first: tuple[MetricSpec, ...], then: tuple[MetricSpec, ...]) -> tuple[MetricSpec, ...]:
    """By name, in order; what stands in `first` keeps its place, and is held out if either says so."""
    others = {spec.name: spec for spec in then}
    both = [
        spec.model_copy(update={"held_out": spec.held_out or (spec.name in others and others[spec.name].held_out)})
        for spec in first
    ]
    return (*both, *(spec for spec in then if spec.name not in {known.name for known in first}))
