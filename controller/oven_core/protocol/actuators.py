"""The actuators that this project's learner can announce: names for those that code refers to, and a spec for each.

The mesh, the learner and the agents read the specs that the run announces in RunStarted. The knowledge graph's linter
and the import of foreign logs have no such announcement, so they use `ACTUATORS`.
"""

from __future__ import annotations

from typing import Final

from oven_core.protocol.messages import ActuatorSpec

ROLLBACK: Final = "run.rollback"
UNDO: Final = "run.undo_rollback"
"""Undoes the last rollback by restoring the state from before it."""
EVALUATE: Final = "run.evaluate"
CHECKPOINT: Final = "run.checkpoint"
BEST: Final = "run.best"
"""The choice of the final weights. It takes effect only at the end of the run."""
HOLD: Final = "run.hold"
STOP: Final = "run.stop"

_ALL = (
    ActuatorSpec(name="optimizer.lr_scale", kind="scalar", unit="× the schedule", risky=True),
    ActuatorSpec(name="optimizer.warmup", kind="scalar", unit="steps from now on, in which the rate rises"),
    ActuatorSpec(name="optimizer.weight_decay", kind="scalar", unit="× rate, of each weight in a step"),
    ActuatorSpec(name="grad.clip", kind="scalar", unit="norm"),
    ActuatorSpec(name="grpo.beta", kind="scalar", unit="× KL to the reference", moves_own_metric=True),
    ActuatorSpec(name="grpo.epsilon", kind="scalar", unit="ratio around 1"),
    ActuatorSpec(name="grpo.epsilon_high", kind="scalar", unit="ratio above 1"),
    ActuatorSpec(name="rloo.beta", kind="scalar", unit="× KL per completion, in the reward", moves_own_metric=True),
    ActuatorSpec(name="rloo.epsilon", kind="scalar", unit="ratio around 1"),
    ActuatorSpec(
        name="dpo.beta", kind="scalar", unit="× log-ratio to the reference, in the loss", moves_own_metric=True
    ),
    ActuatorSpec(name="distillation.beta", kind="scalar", unit="0: forward KL, 1: reverse KL", moves_own_metric=True),
    ActuatorSpec(name="channel.distill", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="channel.sft", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="channel.sdpo", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="channel.kg", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="channel.mtp", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="channel.z_loss", kind="scalar", unit="× loss term"),
    ActuatorSpec(name="reward.calibration", kind="scalar", unit="λ", moves_own_metric=True),
    ActuatorSpec(name="reward.weights", kind="simplex", unit="share", moves_own_metric=True),
    ActuatorSpec(name="data.mixture", kind="simplex", unit="share", moves_own_metric=True),
    ActuatorSpec(name="teacher.active", kind="choice"),
    ActuatorSpec(name="train.quantisation", kind="choice", moves_own_metric=True),
    ActuatorSpec(name=ROLLBACK, kind="action", unit="tick", effect="moves_weights"),
    ActuatorSpec(name=UNDO, kind="action", effect="moves_weights"),
    ActuatorSpec(name=BEST, kind="choice", effect="at_end"),
    ActuatorSpec(name=EVALUATE, kind="action", effect="measures"),
    ActuatorSpec(name=CHECKPOINT, kind="action", effect="copies"),
    ActuatorSpec(name="data.accumulation", kind="scalar", unit="micro-batches per optimizer step"),
    ActuatorSpec(name="data.skip", kind="action", unit="batches"),
    ActuatorSpec(name=HOLD, kind="action", effect="ends_or_holds"),
    ActuatorSpec(name=STOP, kind="action", effect="ends_or_holds"),
)
ACTUATORS: Final = {spec.name: spec for spec in _ALL}
"""Name → spec, without the values, bounds and choices, which differ between runs."""
