"""The pretraining trainee: next bytes of Python sources, AdamW, a short warm-up and then a constant rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

from oven_bench.gym.fault import NOTHING, Fault, Step
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.task_table import Kind
from oven_bench.gym.tasks.pretraining.byte_model import BYTES, ByteModel, Flat
from oven_bench.gym.tasks.pretraining.corpus import LENGTH, SHARES, corpus, pair
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

BATCH = 8
LEARNING_RATE = 3e-3
"""The best of 0.001 to 0.04 on the seeds for development, after 230 steps (docs/experiments.md)."""
WARMUP = 20
"""Steps of linear warm-up. The learning rate is constant afterwards."""
WEIGHT_DECAY, CLIP = 0.1, 1.0
EVAL_EVERY = 20
"""Gradient steps between two evaluations."""
WORST = math.log(BYTES)
"""Nats per byte of a uniform prediction, the largest loss of a run: a model above it is no more useless."""

METRICS = (
    MetricSpec(name="loss", unit="nats a byte", better="down"),
    MetricSpec(name="grad_norm", unit="before clipping"),
    MetricSpec(name="learning_rate", unit="effective"),
    MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1"),
    MetricSpec(name="optim/update_ratio", unit="norm of the update over norm of the weights"),
    MetricSpec(name="optim/weight_norm", unit="norm of all weights"),
    MetricSpec(name="data/repeated", unit="share of the batch's rows that were read before"),
    MetricSpec(name="eval/loss", unit="nats a byte", better="down", held_out=True),
)


class Pretraining:
    """One seed's run. A batch depends only on seed, cursor and mixture.

    `grad.clip` and `optimizer.weight_decay` replace the setting once they are set. `optimizer.lr_scale` multiplies the
    learning rate.
    """

    kind: Kind = "pretraining"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.metrics: tuple[MetricSpec, ...] = METRICS
        self.gradient_steps = 0
        self.cursor = 0
        self.model: torch.nn.Module = ByteModel(LENGTH, generator("weights", seed))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True
        )
        self._flat = Flat(self.model, self.optimizer)
        order = generator("order", seed)
        self._order = {kind: torch.randperm(len(rows), generator=order) for kind, rows in corpus().train.items()}
        self._marks = torch.randint(-(2**62), 2**62, (LENGTH + 1,), generator=generator("marks"))
        self._hashes: set[int] = set()
        self._scale = 1.0
        self._evaluate_next = False
        self._replaced: dict[str, float] = {}
        self._shares = dict(SHARES)
        self.settings: dict[str, float] = self._own()
        self.actuators = self._announced()

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """Make one optimizer step, and return METRICS. `data/repeated` counts the rows as the fault left them."""
        fault = fault or NOTHING
        self.settings.update(self._own())
        step = self.step(fault)
        fault.apply_settings(step)
        fault.apply_weights(step)
        loss = fault.apply_loss(self.loss_of(step.rows), step)
        self._flat.gradients.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        fault.apply_gradients(step)
        with torch.no_grad():
            metrics = {"loss": loss.item(), **self._update(), "data/repeated": self._repeated(step.rows)}
        self.gradient_steps += 1
        self.cursor += 1
        if self.gradient_steps % EVAL_EVERY == 0 or self._evaluate_next:
            self._evaluate_next = False
            metrics["eval/loss"] = self._measured(corpus().gauged)
        return metrics

    def step(self, fault: Fault = NOTHING) -> PretrainingStep:
        """The next step."""
        return PretrainingStep(self, fault)

    def quality(self) -> float:
        """Nats per byte on held-out rows other than those of `eval/loss`: at most WORST, also for NaN."""
        loss = self._measured(corpus().judged)
        return min(loss, WORST) if math.isfinite(loss) else WORST

    def state(self) -> Mapping[str, Any]:
        return {"numbers": self._flat.copy(), "cursor": self.cursor, "hashes": frozenset(self._hashes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._flat.put_back(state["numbers"])
        self.cursor = state["cursor"]
        self._hashes = set(state["hashes"])

    @torch.no_grad()
    def examples(self) -> list[float]:
        """Nats per byte of each row behind `eval/loss`."""
        inputs, targets = pair(corpus().gauged)
        losses = F.cross_entropy(self.model(inputs).transpose(1, 2), targets, reduction="none").mean(1)
        return [float(loss) for loss in losses]

    @property
    def learning_rate(self) -> float:
        """The setting times the knob `optimizer.lr_scale`."""
        return self.settings["learning_rate"] * self._scale

    def _own(self) -> dict[str, float]:
        """The user's settings at this step. The warm-up follows the optimizer's own count, which a rollback
        moves back like a scheduler's."""
        rate = LEARNING_RATE * min(1.0, (float(self._flat.steps[0]) + 1) / WARMUP)
        return {"learning_rate": rate, "weight_decay": WEIGHT_DECAY, "clip": CLIP}

    def read(self) -> torch.Tensor:  # int64 [BATCH, LENGTH + 1]
        """Read the batch at the cursor. No row repeats until a sub-corpus is used up."""
        drawn = torch.rand(BATCH, generator=generator("mixture", self.seed, self.cursor))
        bounds = torch.tensor(list(self._shares.values())).cumsum(0)
        kinds = torch.searchsorted(bounds / bounds[-1], drawn, right=True).clamp(max=len(bounds) - 1)
        names, train = list(self._shares), corpus().train
        first = self.cursor * BATCH
        rows = []
        for row, kind in enumerate(names[index] for index in kinds.tolist()):
            order = self._order[kind]
            rows.append(train[kind][order[(first + row) % len(order)]])
        return torch.stack(rows).long()

    def loss_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Nats per byte, mean over the rows."""
        inputs, targets = pair(rows)
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())

    def _update(self) -> dict[str, float]:
        """Clip, make the step, and return its gauges."""
        flat = self._flat
        norm = torch.linalg.vector_norm(flat.gradients)
        metrics = {"grad_norm": norm.item()}
        if flat.steps[0] > 0:  # before the first step there is no momentum to compare with
            momentum = torch.linalg.vector_norm(flat.first)
            metrics["optim/grad_momentum_cos"] = (flat.gradients.dot(flat.first) / (norm * momentum)).item()
        # torch.nn.utils.clip_grad_norm_ on the flat vector, with the same NaN and infinities.
        flat.gradients.mul_((self.knob("clip") / (norm + 1e-6)).clamp(max=1.0))
        rate = self.learning_rate
        self.optimizer.param_groups[0].update(lr=rate, weight_decay=self.knob("weight_decay"))
        before = flat.weights.clone()
        self.optimizer.step()
        weight_norm = torch.linalg.vector_norm(before)
        metrics["learning_rate"] = rate
        metrics["optim/update_ratio"] = (torch.linalg.vector_norm(flat.weights - before) / weight_norm).item()
        metrics["optim/weight_norm"] = weight_norm.item()
        return metrics

    def _repeated(self, rows: torch.Tensor) -> float:
        """The share of rows whose hash occurred before, in earlier batches or in this one."""
        inputs = rows[0] if rows.dim() == 3 else rows
        hashes = (inputs * self._marks[: inputs.shape[1]]).sum(1).tolist()
        again = 0
        for mark in hashes:
            again += mark in self._hashes
            self._hashes.add(mark)
        return again / len(hashes)

    @torch.no_grad()
    def _measured(self, rows: torch.Tensor) -> float:
        """Nats per byte over all rows, in parts that fit into the processor's cache."""
        losses = [self.loss_of(part).item() * len(part) for part in torch.split(rows, 8 * BATCH)]
        return math.fsum(losses) / len(rows) if all(map(math.isfinite, losses)) else math.nan

    def knob(self, setting: str) -> float:
        """A setting, or the knob's value if the knob was set."""
        return self._replaced.get(setting, self.settings[setting])

    def _announced(self) -> Actuators:
        knobs = Actuators()
        knobs.scalar(
            "optimizer.lr_scale", lambda: self._scale, lambda value: setattr(self, "_scale", value),
            low=0.001, high=100, scale="log", unit="× the schedule", risky=True,
        )  # fmt: skip
        knobs.scalar(
            "grad.clip", lambda: self.knob("clip"), lambda value: self._replaced.update(clip=value),
            low=0.01, high=100, scale="log", unit="norm",
        )  # fmt: skip
        knobs.scalar(
            "optimizer.weight_decay",
            lambda: self.knob("weight_decay"),
            lambda value: self._replaced.update(weight_decay=value),
            low=0.0,
            high=max(10 * WEIGHT_DECAY, 0.5),
        )
        knobs.simplex(
            "data.mixture", lambda: self._shares, lambda shares: self._shares.update(shares), moves_own_metric=True
        )
        knobs.action("data.skip", self._skip, unit="batches to pass over")
        knobs.action(EVALUATE, self._request_evaluation, effect="measures")
        return knobs

    def _request_evaluation(self, _: float | None) -> float:
        """Have the next step measure `eval/loss`."""
        self._evaluate_next = True
        return float(self.gradient_steps)

    def _skip(self, batches: float | None) -> tuple[float, float]:
        if batches is None or batches < 1 or batches != int(batches):
            raise ValueError(f"{batches} is no number of batches to skip; give a whole one from 1 on")
        before, self.cursor = self.cursor, self.cursor + int(batches)
        return float(before), float(self.cursor)


class PretrainingStep(Step):
    """A step of pretraining. The fault acts on its batch."""

    def __init__(self, trainee: Pretraining, fault: Fault) -> None:
        super().__init__(trainee, fault)
        self._trainee, self._fault = trainee, fault

    @cached_property
    def rows(self) -> torch.Tensor:
        """The batch as the fault leaves it: int64 [B, LENGTH + 1], or inputs and targets [2, B, LENGTH]."""
        rows: torch.Tensor = self._fault.apply_batch(self._trainee.read(), self)
        return rows

    @cached_property
    def targets(self) -> torch.Tensor:
        return pair(self.rows)[1]

    @cached_property
    def logits(self) -> torch.Tensor:
        logits: torch.Tensor = self.model(pair(self.rows)[0])
        return logits
