"""Connect your own training loop to the controller with `oven.connect`, in PyTorch or any other framework.

    with oven.connect(model=model, optimizer=optimizer, scheduler=scheduler, max_steps=1000) as client:
        for step in range(1, 1001):
            ...                                          # forward, backward, optimizer.step(), scheduler.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()                                # applies decisions
            if client.stopping:
                break

If you do not use `with`, call `client.close()` at the end. Torch is imported only if you pass an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.state import main_held_out_metric
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client.accumulation import Accumulation
from oven_learner.client.best_weights import BestWeights
from oven_learner.client.held_out_evaluation import Evaluation, Measurements
from oven_learner.client.loop_client import LoopClient, idle_client
from oven_learner.client.run_start import installed_versions, next_training_name
from oven_learner.completions.sample_message import Redact
from oven_learner.completions.sampling import choose_sampling
from oven_learner.link.find_controller import Connection, Mode, find_controller
from oven_learner.link.link_interface import Link, SilentLink
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.optim.rate_knobs import RateKnobs, create_rate_knobs, named_optimizers
from oven_learner.rollback.memory_snapshots import CREDIT_S, Snapshots

if TYPE_CHECKING:
    from oven_learner.optim.step_gauges import StepGauges

DEFAULT_METRICS = (MetricSpec(name="loss", better="down"),)
"""Metrics that are announced even if `metrics` does not contain them."""


def connect(
    actuators: Actuators | None = None,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    clip: float | None = None,
    accumulation: int | None = None,
    evaluate: Callable[[], Measurements] | None = None,
    evaluate_every: int = 20,
    max_steps: int | None = None,
    seconds: float | None = None,
    step: int = 0,
    metrics: tuple[MetricSpec, ...] = (),
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
    """Announce the run, and return its client. Call the client's `observe` and `poll` once per optimizer step, and
    `close` at the end.

    Args:
        actuators: your own knobs. `run.hold` and `run.stop` always exist.
        model: with an `optimizer`, it adds `run.checkpoint`, `run.rollback` and `run.undo_rollback` if copies fit into
            memory. With `evaluate`, it also adds `run.best`, which selects the final weights.
        optimizer: a torch optimizer. It adds `optimizer.lr_scale`, `optimizer.lr_scale/<name>` for parameter groups
            with a `name`, `optimizer.warmup`, and, if it uses weight decay, `optimizer.weight_decay`. Its steps measure
            the learning rate, the gradient norm and the gauges of oven_learner.optim.optimizer_gauges. Pass several
            optimizers as a mapping from names, such as `{"muon": muon, "adamw": adamw}`, or as a list, in which case
            the names are those of their classes. `optimizer.lr_scale` then scales the rates of all, and
            `optimizer.lr_scale/<name>` those of one. The first one is measured, and has to step first.
        scheduler: the optimizer's scheduler, if it has one. With several optimizers, pass a mapping or a list.
        clip: clip gradients to this norm before each step of the `optimizer`, exactly like
            `clip_grad_norm_(model.parameters(), clip)`. It adds `grad.clip`. Remove your own clipping.
        accumulation: the number of micro-batches per optimizer step. It adds `data.accumulation`. At each step, read
            `client.accumulation`, run that many micro-batches, and divide the loss of each by it.
        evaluate: measures held-out metrics at the start, every `evaluate_every` steps, at `max_steps`, and whenever
            an agent requests it (`run.evaluate`). Instead of its mean, a metric may be a list with the value of each
            example.
        step: the step at which a resumed loop continues.
        metrics: the metrics that you pass to `observe`, in addition to `loss`. Agents that need other metrics report
            that they cannot fire. You can also name metrics of `evaluate` here, if their names do not show
            whether higher or lower is better.
        lr_bounds: bounds of `optimizer.lr_scale`, as multiples of your schedule.
        snapshots: your own copies for rollback, instead of copies of the `model`.
        training: the name of this training run, if the script has several in sequence. Use the same name to connect
            again and continue. By default, training runs are numbered.
        completions: which completions to show in the monitor, as for `attach`. Only trainers that sample groups
            of completions, such as PolicyTrainer, use it.
        redact: a function from text to text, as for `attach`.
        optional: train without a controller if there is none.

    Under torch.distributed, all ranks make this call, and call `observe` and `poll` at the same steps. Only rank 0
    communicates with the bus. For `metrics` and the evaluation, it publishes the mean over the ranks that measured
    them. For other metrics, it publishes its own value.

    Raises ConfigError if there is no controller and it is not `optional`, BusError if the controller does not answer,
    and RefusedError if it rejects the credentials. Later failures of the controller do not affect the loop.
    """
    if evaluate_every < 1:
        raise ConfigError(f"evaluate_every={evaluate_every} is invalid; give 1 or more steps")
    if clip is not None and optimizer is None:
        raise ConfigError("clip= needs the optimizer whose gradients are clipped; pass optimizer= as well")
    knobs = actuators.copy() if actuators is not None else Actuators()
    micro_batches = Accumulation.register(knobs, accumulation) if accumulation is not None else None
    mode = Mode.from_environment(optional)
    all_ranks = ranks.Ranks.join()
    connection: Connection | None = None
    user_link = link
    if link is None or mode is Mode.DISABLED:
        has_controller, connection = find_controller(
            mode, url, run, creds, leader=all_ranks.leader, broadcast=all_ranks.broadcast
        )
        if not has_controller:
            idle = idle_client(mode, knobs, step=step, max_steps=max_steps, seconds=seconds, ranks=all_ranks)
            idle.micro_batches = micro_batches
            if clip is not None:  # clipping is part of the script's training
                from oven_learner.optim.sharding import find_sharding
                from oven_learner.optim.step_gauges import Clip

                first_optimizer = next(iter(named_optimizers(optimizer).values()))
                clipping = Clip(clip, model, find_sharding(model, first_optimizer))
                idle.hooks.callback(clipping.attach(first_optimizer).remove)
            return idle
        link = connection.link() if connection is not None else SilentLink()
    sampling = choose_sampling(connection.shown_completions if connection is not None else None, completions, redact)
    evaluation = _create_evaluation(evaluate, evaluate_every, model, knobs) if evaluate is not None else None
    evaluated_metrics = evaluation.held_out_specs(metrics) if evaluation is not None else ()
    client: LoopClient  # assigned below; the callbacks that refer to it are called only afterwards
    with ExitStack() as hooks:  # removes the optimizer's hooks if anything below fails
        rates = None
        if optimizer is not None:
            rates = create_rate_knobs(optimizer, scheduler)
            hooks.callback(rates.close)
            rates.register(knobs, lr_bounds, max_steps)
        lockstep = bool(connection and connection.lockstep)
        if snapshots is None and model is not None and rates is not None:
            snapshots = _create_snapshots(model, rates, lambda: client, lockstep, all_ranks)
        if snapshots is not None:
            snapshots.use_ranks(all_ranks)
        gauges = None
        if rates is not None and rates.readbacks[0].has_hooks:
            gauges = _create_gauges(knobs, rates, model, clip, lambda *args: client.publish(*args), all_ranks.leader)
            hooks.callback(gauges.close)
        averaged_metrics = _merge_specs(_merge_specs(metrics, DEFAULT_METRICS), evaluated_metrics)
        announced = _merge_specs(averaged_metrics, gauges.metric_specs() if gauges is not None else ())
        client = LoopClient(
            link,
            knobs,
            recipe=recipe,
            training=training or next_training_name(connection.run if connection else "", user_link),
            metrics=announced,
            max_steps=max_steps,
            seconds=seconds,
            rules=connection.rules if connection else None,
            lockstep=lockstep,
            snapshots=snapshots,
            mesh_code=mesh_code_hash(),
            versions=installed_versions(),
            keys=connection.keys if connection else None,
            ranks=all_ranks,
            averaged_metrics=[spec.name for spec in averaged_metrics],
            settle=lambda: client.settle(),
            unmeasured=gauges.unmeasured if gauges is not None else {},
            best=_create_best_weights(model, rates, evaluation, announced, lambda: client, all_ranks),
        )
        client.gauges, client.rates, client.evaluation = gauges, rates, evaluation
        client.micro_batches = micro_batches
        client.start(step)
        client.hooks, client.sampling = hooks.pop_all(), sampling if all_ranks.leader else None
    client.publish_first_evaluation(step)
    return client


def _create_evaluation(evaluate: Callable[[], Measurements], every: int, model: Any, knobs: Actuators) -> Evaluation:
    """Evaluate the initial weights, and register `run.evaluate`."""
    evaluation = Evaluation(evaluate, every, model)
    evaluation.measure()
    if EVALUATE not in knobs:
        knobs.action(EVALUATE, evaluation.request, effect="measures")
    return evaluation


def _create_snapshots(
    model: Any, rates: RateKnobs, client: Callable[[], LoopClient], lockstep: bool, all_ranks: ranks.Ranks
) -> Snapshots | None:
    """Return the snapshots for rollback, or None if copies do not fit into memory or cannot be taken."""
    from oven_learner.optim import sharding, snapshot
    from oven_learner.rollback.snapshot_memory import plan_snapshots

    memory = plan_snapshots(snapshot.snapshot_bytes(model), all_ranks) if sharding.can_copy_weights(model) else None
    if memory is None:
        return None
    state = snapshot.LoopSnapshot(model, rates.scales, lambda: client().on_weights_restored(), device=memory.device)
    # In lockstep, the target of a rollback must not depend on the clock.
    credit = math.inf if lockstep else CREDIT_S
    return Snapshots(lambda: (client().step, state.take()), state.restore, credit=credit, levels=memory.levels)


def _create_best_weights(
    model: Any,
    rates: RateKnobs | None,
    evaluation: Evaluation | None,
    announced: tuple[MetricSpec, ...],
    client: Callable[[], LoopClient],
    all_ranks: ranks.Ranks,
) -> BestWeights | None:
    """Return the BestWeights, or None if `evaluate` does not measure the main held-out metric or no copy fits."""
    metric = main_held_out_metric(announced)
    if model is None or rates is None or evaluation is None or metric is None or metric.name not in evaluation.last:
        return None
    from oven_learner.optim import sharding, snapshot
    from oven_learner.rollback.snapshot_memory import best_weights_fit

    if not (sharding.can_copy_weights(model) and best_weights_fit(snapshot.snapshot_bytes(model), all_ranks)):
        return None
    copies = snapshot.WeightCopies(model, lambda: client().on_weights_restored())
    name = metric.name
    return BestWeights(
        metric, copy=copies.take, restore=copies.restore, measure=lambda: evaluation.measure_one(name), ranks=all_ranks
    )


def _create_gauges(
    knobs: Actuators, rates: RateKnobs, model: Any, clip: float | None, publish: Any, is_leader: bool
) -> StepGauges:
    """Return the gauges of each step. Raises ConfigError for `clip` if DeepSpeed shards the gradients."""
    from oven_learner.optim import sharding as shards
    from oven_learner.optim import weight_decay
    from oven_learner.optim.optimizer_gauges import OptimizerGauges
    from oven_learner.optim.step_gauges import Clip, StepGauges

    optimizers = [scale.optimizer for scale in rates.scales]
    sharding = shards.find_sharding(model, optimizers[0])
    clipping = Clip(clip, model, sharding) if clip is not None else None
    if clipping is not None:
        clipping.register_knob(knobs, USER_BOUNDS)
    weight_decay.register_knob(optimizers, knobs)
    gauges = OptimizerGauges(optimizers[0], model, publishes=is_leader, sharding=sharding)
    return StepGauges(rates.readbacks[0], gauges, publish, clip=clipping, sharding=sharding, publishes=is_leader)


def _merge_specs(specs: tuple[MetricSpec, ...], more_specs: tuple[MetricSpec, ...]) -> tuple[MetricSpec, ...]:
    """Append `more_specs` to `specs`. If both have the same name, keep the first, marked as held out if either is."""
    held_out_names = {spec.name for spec in more_specs if spec.held_out}
    merged = [spec.model_copy(update={"held_out": spec.held_out or spec.name in held_out_names}) for spec in specs]
    names = {spec.name for spec in specs}
    return (*merged, *(spec for spec in more_specs if spec.name not in names))
